"""A text is found among tokens, at its own tokens, wherever blocks of decoding end."""

from __future__ import annotations

import pytest

from longspan.bundled import load_bundled
from longspan_eval.analysis.locate import locate


class Letters:
    """A token for each character."""

    @staticmethod
    def decode(ids, **_):
        return "".join(map(chr, ids))


def letters(text):
    return [ord(c) for c in text]


@pytest.mark.parametrize(
    ("text", "wanted", "places"),
    [
        ("abcabc", "bc", [(1, 3), (4, 6)]),
        ("aaaa", "aa", [(0, 2), (1, 3), (2, 4)]),
        ("abc", "x", []),
        ("x" * 253 + "needle" + "x" * 300 + "needle", "needle", [(253, 259), (559, 565)]),
        ("x" * 255 + "needle", "needle", [(255, 261)]),
        ("needle" + "x" * 250 + "needle", "needle", [(0, 6), (256, 262)]),
        ("", "a", []),
    ],
)
def test_letters(text, wanted, places):
    assert locate(Letters(), letters(text), wanted) == places


def test_nothing_to_look_for():
    with pytest.raises(ValueError, match="empty"):
        locate(Letters(), [1], "")


@pytest.mark.parametrize("before", [0, 3, 100, 251, 255, 256, 400])
def test_a_real_tokenizer(before):
    tokenizer = load_bundled()[1]
    filler = tokenizer(" The grass is green." * 200, add_special_tokens=False)["input_ids"]
    needle = tokenizer("\nThe pass key is 61873. Remember it.", add_special_tokens=False)["input_ids"]
    ids = filler[:before] + needle + filler[:300]
    ((a, b),) = locate(tokenizer, ids, "61873")
    assert before <= a < b <= before + len(needle)
    assert "61873" in tokenizer.decode(ids[a:b])
    assert "61873" not in tokenizer.decode(ids[a + 1 : b]) and "61873" not in tokenizer.decode(ids[a : b - 1])
