"""BM25 against numbers worked out by hand, and its order."""

from __future__ import annotations

import math

import pytest

from longspan_eval.bm25 import BM25, words


def test_by_hand():
    index = BM25(["a b", "b c", "c c d"])
    # N = 3, mean length 7/3. "a" is in one text: idf ln(1 + 2.5/1.5); there once among two words.
    a = math.log(1 + 2.5 / 1.5) * 2.5 / (1 + 1.5 * (0.25 + 0.75 * 2 / (7 / 3)))
    assert a == pytest.approx(1.048214, abs=1e-6)
    assert index.scores("a") == [pytest.approx(a), 0.0, 0.0]
    # "c" is in two: idf ln(1 + 1.5/2.5); once among two words, and twice among three.
    idf = math.log(1.6)
    once = idf * 2.5 / (1 + 1.5 * (0.25 + 0.75 * 2 / (7 / 3)))
    twice = idf * 2 * 2.5 / (2 + 1.5 * (0.25 + 0.75 * 3 / (7 / 3)))
    assert index.scores("c") == [0.0, pytest.approx(once), pytest.approx(twice)]
    assert index.scores("c a c") == [pytest.approx(a), pytest.approx(2 * once), pytest.approx(2 * twice)]
    assert index.scores("unknown words") == [0.0, 0.0, 0.0]


def test_length_and_repetition_do_not_count_where_they_are_told_not_to():
    assert len({*BM25(["a", "a b c d"], b=0.0).scores("a")}) == 1
    assert BM25(["a a a", "a"], b=0.0, k1=0.0).scores("a")[0] == pytest.approx(BM25(["a", "a"], k1=0.0).scores("a")[0])


def test_the_best_comes_first_and_equal_ones_in_their_order():
    index = BM25(["the dog", "a cat on the mat", "Cat!", "a bird"])
    assert index.ranked("cat?") == [2, 1, 0, 3]
    assert index.ranked("zebra") == [0, 1, 2, 3]


def test_words():
    assert words("The cat's 2 mats_here: É!") == ["the", "cat", "s", "2", "mats", "here", "é"]
    assert BM25(["", "a"]).scores("a")[0] == 0.0
    assert BM25([""]).scores("a") == [0.0]


def test_no_texts():
    with pytest.raises(ValueError, match="at least one text"):
        BM25([])
