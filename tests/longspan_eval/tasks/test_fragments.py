"""Pieces of prompts and haystacks: tokens add up, needles go where they are asked to go."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.bundled import heldout_text
from longspan.text.encode import encode
from longspan_eval.tasks.fragments import fitting, inside, opening, piece
from longspan_eval.tasks.haystack import Hay, HaySource, Needle, hide, prose

TEXTS = [" word", "\nA line.", ' "key": 1,', " two words", "\n\n\nthree", " word"]


def test_fragments_are_the_text(any_tokenizer):
    ids = opening(any_tokenizer, "It begins here.") + [token for ids in inside(any_tokenizer, TEXTS) for token in ids]
    assert any_tokenizer.decode(ids, skip_special_tokens=True) == "It begins here." + "".join(TEXTS)


def test_a_text_that_flows_together_with_what_is_before_is_tokenized_alone(tokenizer):
    assert len(encode(tokenizer, "and")) == 1  # so that "nd" has no tokens of its own behind an "a"
    assert inside(tokenizer, ["nd", " x"]) == [encode(tokenizer, "nd"), encode(tokenizer, " x")]


def test_fragments_are_the_tokens_of_the_whole(spaced_tokenizer):
    parts = ["One of us", " is here", " and", " one is not."]
    ids = opening(spaced_tokenizer, parts[0]) + [token for ids in inside(spaced_tokenizer, parts[1:]) for token in ids]
    assert ids == spaced_tokenizer("".join(parts))["input_ids"]


@pytest.mark.parametrize("room", [0, 1, 7, 100, 101, 2000])
def test_fitting_takes_as_many_as_fit(any_tokenizer, room):
    texts = [f" {n * n}," for n in range(1500)]
    kept = fitting(any_tokenizer, texts, room)
    assert kept == texts[: len(kept)]
    sizes = [len(ids) for ids in inside(any_tokenizer, texts[: len(kept) + 1])]
    assert sum(sizes[: len(kept)]) <= room < sum(sizes)


def test_the_prose_is_the_bundled_text(byte_tokenizer):
    units = prose(byte_tokenizer).units
    whole = byte_tokenizer.decode([token for unit in units for token in unit])
    assert whole == "\n" + "\n".join(line.strip() for line in heldout_text().splitlines())
    assert len(units) > 3000 and prose(byte_tokenizer) is prose(byte_tokenizer)
    ends = [byte_tokenizer.decode(unit)[-1] for unit in units]
    assert sum(end in ".!?:)" for end in ends) > 0.9 * len(ends)


def test_a_text_ends_whole_and_is_read_round(byte_tokenizer):
    source = HaySource([piece(byte_tokenizer, text) for text in (" One.", " Two.", " Three.")])
    assert byte_tokenizer.decode(source.before(2, 8).ids) == "ne. Two."
    assert source.before(2, 8).gaps == [0, 3, 8]
    assert byte_tokenizer.decode(source.before(1, 20).ids) == "ne. Two. Three. One."
    assert source.before(0, 0) == Hay([], [0])
    with pytest.raises(ValueError, match="no tokens"):
        HaySource([[]])


def test_a_passage_ends_alike_however_long(tokenizer):
    passage = prose(tokenizer).passage(random.Random(5))
    assert passage(500).ids == passage(4000).ids[-500:]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.floats(0, 1))
def test_gaps_nearest_and_before(sizes, depth):
    hay = Hay.of([[0] * size for size in sizes])
    target = depth * len(hay.ids)
    assert hay.gaps[0] == 0 and hay.gaps[-1] == len(hay.ids) == sum(sizes) and len(hay.gaps) == len(sizes) + 1
    assert abs(hay.nearest(depth) - target) == min(abs(gap - target) for gap in hay.gaps)
    assert hay.back(depth) == max(gap for gap in hay.gaps if gap <= target)


def test_needles_at_one_gap_keep_their_order():
    hay = Hay.of([[1, 1], [2, 2]])
    assert hay.with_needles([(4, [9]), (2, [8]), (2, [7]), (0, [6])]) == [6, 1, 1, 8, 7, 2, 2, 9]


@pytest.mark.parametrize(
    ("depth", "nearest", "back"), [(0.0, 0, 0), (0.3, 5, 0), (0.5, 5, 5), (0.8, 10, 5), (1, 10, 10)]
)
def test_a_needle_goes_back_or_to_the_nearest_gap(byte_tokenizer, depth, nearest, back):
    source = HaySource([piece(byte_tokenizer, text) for text in (" One.", " Two.")])
    for gap, way in ((nearest, False), (back, True)):
        ids, placed = hide(
            byte_tokenizer,
            "it",
            lambda room: source.before(0, room),
            [Needle("<>", depth)],
            before="B",
            after="A",
            length=17,
            new_tokens=3,
            back=way,
        )
        text = " One. Two."
        assert byte_tokenizer.decode(ids) == f"B{text[:gap]}<>{text[gap:]}A" and placed == [gap / 10]
