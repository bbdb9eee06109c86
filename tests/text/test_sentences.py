"""A text is cut into its sentences, whole words each, in time that grows with its length."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.text.sentences import LONGEST, sentences


def texts(text: str) -> list[str]:
    return [text[a:b] for a, b in sentences(text)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('Mr. Knightley came. "Is it?" she asked.', ["Mr. Knightley came.", '"Is it?"', "she asked."]),
        ("By J. R. Smith, e.g. 3.14! (So it is.) Well…", ["By J. R. Smith, e.g. 3.14!", "(So it is.)", "Well…"]),
        ("A title\n\n  Line one\nline two.\nNext.", ["A title", "Line one\nline two.", "Next."]),
        ("これは文です。「次。」終わり", ["これは文です。", "「次。」", "終わり"]),
        ("no end", ["no end"]),
        ("  \n\n \t", []),
        ("", []),
    ],
)  # fmt: skip
def test_sentences(text, parts):
    assert texts(text) == parts


def test_what_has_no_sentences_is_cut_at_lines_and_between_words():
    code = "\n".join(f"    value_{n} = call(argument_{n}, other={n})" for n in range(40))
    assert len(texts(code)) > 3 and all(part.startswith("value_") and part.endswith(")") for part in texts(code))
    assert all(" " not in (part[0], part[-1]) for part in texts("word " * 500))
    assert [len(part) for part in texts("a" * 1000)] == [LONGEST, LONGEST, 1000 - 2 * LONGEST]


@given(st.text(alphabet=" .!?\n\"'。”aMr1", max_size=1500))
def test_parts_hold_all_but_space_in_order(text):
    found = sentences(text)
    assert all(a < b <= a + LONGEST for a, b in found)
    assert all(b <= c for (_, b), (c, _) in pairwise(found))
    assert "".join("".join(text[a:b].split()) for a, b in found) == "".join(text.split())


@pytest.mark.parametrize("piece", ["a", " ", "\n", ". ", ".", '"', ".\n", ". \n\n", ".'", "。", "\n "])
def test_time_is_linear(piece):
    def seconds(characters: int) -> float:
        text = piece * (characters // len(piece)) + "x"
        began = time.process_time()
        sentences(text)
        return time.process_time() - began

    few = max(min(seconds(50_000) for _ in range(3)), 0.002)
    assert seconds(400_000) < 30 * few  # 64 times if it were quadratic
