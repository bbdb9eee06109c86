"""Metrics of what was chosen, against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import longspan
from longspan.attend import Choice
from longspan_eval.analysis import Chunking, counts, cover_rate, gini, hit_rate, uniformity
from longspan_eval.analysis.metrics import chosen, chunk_scores, hits, vote_rates


def choice(units, scores=None, *, layer=0, size=4, origin=0, kept=((0, 4), (16, 22)), query=21, scored_from=0, **other):
    scores = None if scores is None else torch.tensor(scores, dtype=torch.float32)
    made = {"call": 0, "row": 0, "first": query, "padding": 0, **other}
    return Choice(
        layer=layer, query=query, units=torch.tensor(units), size=size, origin=origin, scores=scores,
        scored_from=scored_from, kept=kept, **made,
    )  # fmt: skip


SIX = Chunking((0, 4, 8, 12, 16, 20), 22)  # the last one has only begun
TWO_LAYERS = [
    choice([[1], [2]], [[9, 1, 5, 2, 3], [1, 2, 3, 4, 5]]),
    choice([[2], [2]], [[0, 0, 8, 1, 2], [5, 4, 3, 2, 1]], layer=3),
]


def test_counts_cover_and_gini():
    # Four heads keep chunk 0 and, of tokens 16..21, chunks 4 and 5; one chooses chunk 1, three chunk 2, none chunk 3.
    assert counts(TWO_LAYERS, SIX).tolist() == [4, 1, 3, 0, 4, 4]
    assert cover_rate(TWO_LAYERS, SIX) == pytest.approx(5 / 6)
    # Ascending 0 1 3 4 4 4: (-5·0 - 3·1 - 1·3 + 1·4 + 3·4 + 5·4) / (6 · 16)
    assert uniformity(TWO_LAYERS, SIX) == pytest.approx(30 / 96)
    # Chosen ones alone, 0 0 0 0 1 3: (3·1 + 5·3) / (6 · 4)
    assert counts(TWO_LAYERS, SIX, forced=False).tolist() == [0, 1, 3, 0, 0, 0]
    assert uniformity(TWO_LAYERS, SIX, forced=False) == pytest.approx(18 / 24)


@pytest.mark.parametrize(
    ("answers", "top", "rate"),
    # Chosen among are chunks 1 to 3. Best of each head: 2 and 3 in one layer, 2 and 1 in the other.
    [([1], 1, 0.25), ([2], 1, 0.5), ([3], 1, 0.25), ([1, 3], 1, 0.5), ([1], 2, 0.25), ([2], 2, 1.0), ([3], 2, 0.75),
     ([1], 3, 1.0), ([1], 5, 1.0),
     # A part of the answer that is kept anyway, as chunks 0, 4 and 5 are, changes nothing.
     ([0, 2], 1, 0.5), ([1, 4], 1, 0.25)],
)  # fmt: skip
def test_hit_rate(answers, top, rate):
    assert hit_rate(TWO_LAYERS, SIX, answers, top) == rate


@pytest.mark.parametrize(
    ("answers", "top", "layer", "model"),
    [
        # Best of each head: chunks 2 and 3 in one layer, 2 and 1 in the other. What ties counts against an answer.
        ([2], 1, 0.0, 1.0), ([3], 1, 0.0, 0.0), ([2, 3], 1, 0.5, 1.0), ([2, 0], 1, 0.0, 1.0),
        # Best two: 2 3 and 3 2 in one, 2 3 and 1 2 in the other.
        ([2], 2, 1.0, 1.0), ([3], 2, 0.5, 1.0), ([1], 2, 0.0, 0.0), ([1], 5, 1.0, 1.0),
    ],
)  # fmt: skip
def test_hits_of_heads_that_vote(answers, top, layer, model):
    assert vote_rates(TWO_LAYERS, SIX, answers, top) == (layer, model)


@pytest.mark.parametrize("answer", [1, 2, 3])
@pytest.mark.parametrize(("top", "found"), [(1, False), (2, False), (3, True)])
def test_chunks_that_score_as_high_count_against_a_hit(answer, top, found):
    assert hits(choice([[2]], [[9, 0, 0, 0, 9]]), SIX, [answer], top).tolist() == [found]
    assert hits(choice([[2]], [[9, 0, 0, 0, 9]]), SIX, [1, 2, 3], top).tolist() == [True]


@pytest.mark.parametrize("answers", [[0], [4], [5], [0, 5]])
def test_there_is_nothing_to_find_in_what_is_kept_anyway(answers):
    """The best score of a head is that of chunk 0, and that of another that of chunk 4: both are taken without it."""
    assert math.isnan(hit_rate(TWO_LAYERS, SIX, answers, 1))
    assert all(math.isnan(rate) for rate in vote_rates(TWO_LAYERS, SIX, answers, 5))
    assert not hits(TWO_LAYERS[0], SIX, answers, 5).any()


def test_tokens_that_are_kept_anyway_are_not_a_chunks_score():
    """Tokens 0 to 5 are kept, of chunk 1 the last two are chosen among."""
    one = choice([[6]], [[0, 0, 0, 0, 9, 8, 3, 2]], size=1, kept=((0, 6), (20, 22)))
    assert chunk_scores(one, SIX)[0, :2].tolist() == [0, 9]
    assert chunk_scores(one, SIX, forced=False)[0, :2].tolist() == [float("-inf"), 3]
    assert one.scores.max() == 9  # what was recorded stays


@pytest.mark.parametrize("amounts", [[0, 0], [], [-1, 3]])
def test_no_gini(amounts):
    with pytest.raises(ValueError, match="amounts from 0"):
        gini(torch.tensor(amounts))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any), st.integers(2, 5))
def test_gini_is_the_mean_difference(amounts, times):
    """It is half the relative mean absolute difference; scale, order and repetition do not matter."""
    n = len(amounts)
    pairs = sum(abs(a - b) for a in amounts for b in amounts)
    assert gini(torch.tensor(amounts)) == pytest.approx(pairs / (2 * n * sum(amounts)))
    assert gini(torch.tensor([times * a for a in amounts[::-1]])) == pytest.approx(gini(torch.tensor(amounts)))
    assert gini(torch.tensor(amounts * times)) == pytest.approx(gini(torch.tensor(amounts)))


def test_tokens_are_held_against_chunks():
    """Single tokens: a chunk is chosen where one of its tokens is, and has its best token's score."""
    scores = [[float(n % 7) for n in range(2, 20)]]
    one = choice([[5, 6, 13]], scores, size=1, scored_from=2, kept=((0, 1), (17, 22)))
    assert chosen(one, SIX).tolist() == [[True, True, False, True, True, True]]
    assert chosen(one, SIX, forced=False).tolist() == [[False, True, False, True, False, False]]
    # Tokens 2 3 | 4..7 | 8..11 | 12..15 | 16..19, each scored n mod 7
    assert chunk_scores(one, SIX)[0].tolist() == [3.0, 6.0, 4.0, 6.0, 5.0, float("-inf")]


def test_blocks_that_straddle_chunks_count_for_both():
    one = choice([[0], [2]], [[7, 1, 2]] * 2, size=4, origin=2, kept=())  # blocks 2..5, 6..9, 10..13
    assert chosen(one, SIX).tolist() == [
        [True, True, False, False, False, False],
        [False, False, True, True] + [False] * 2,
    ]
    assert chunk_scores(one, SIX)[0].tolist() == [7.0, 7.0, 2.0, 2.0, float("-inf"), float("-inf")]


def test_chunkings():
    heads = longspan.LongHeads(chunk_length=8).resolve(128)
    assert Chunking.of(heads, 20) == Chunking((0, 8, 16), 20)
    assert Chunking.of(heads, 20).spans() == [(0, 8), (8, 16), (16, 20)]
    blocks = longspan.InfLLM(initial=3, block=8).resolve(128)
    assert Chunking.of(blocks, 20) == Chunking((0, 3, 11, 19), 20)
    assert Chunking.of(blocks, 20, 10) == Chunking((0, 10), 20)
    assert Chunking.of(blocks, 3) == Chunking((0,), 3)
    with pytest.raises(ValueError, match="esa does not choose chunks"):
        Chunking.of(longspan.ESA().resolve(128), 20)
    assert Chunking.of(longspan.ESA().resolve(128), 20, 16) == Chunking((0, 16), 20)
    for size, length in ((0, 5), (4, 0)):
        with pytest.raises(ValueError, match="at least one token"):
            Chunking.of(heads, length, size)


@pytest.mark.parametrize("borders", [(), (1, 4), (0, 4, 4), (0, 22), (0, 30)])
def test_no_chunking(borders):
    with pytest.raises(ValueError, match="must ascend from 0"):
        Chunking(borders, 22)


def test_where_spans_lie():
    assert SIX.holding([(3, 4)]) == [0]
    assert SIX.holding([(3, 5), (20, 22)]) == [0, 1, 5]
    assert SIX.holding([(4, 13), (5, 6)]) == [1, 2, 3]
    for span in ((20, 23), (-1, 2), (4, 4)):
        with pytest.raises(ValueError, match="exceeds the text of 22"):
            SIX.holding([span])


def test_what_cannot_be_measured():
    with pytest.raises(ValueError, match="not to 2"):
        cover_rate([*TWO_LAYERS, choice([[1]], query=20)], SIX)
    with pytest.raises(ValueError, match="not to 0"):
        counts([], SIX)
    with pytest.raises(ValueError, match="once"):
        hit_rate([TWO_LAYERS[0]] * 2, SIX, [0], 1)
    with pytest.raises(ValueError, match="sees 22 tokens"):
        cover_rate(TWO_LAYERS, Chunking((0, 8), 23))
    with pytest.raises(ValueError, match="layer 0 has no scores"):
        hit_rate([choice([[1]])], SIX, [0], 1)
    for answers in ([], [6], [-1]):
        with pytest.raises(ValueError, match="the answer lies"):
            hit_rate(TWO_LAYERS, SIX, answers, 1)
        with pytest.raises(ValueError, match="the answer lies"):
            vote_rates(TWO_LAYERS, SIX, answers, 1)
    with pytest.raises(ValueError, match="from 1"):
        hit_rate(TWO_LAYERS, SIX, [0], 0)
