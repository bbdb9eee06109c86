"""Every metric against values worked out by hand: what scores 0, what 1, and what in between."""

from __future__ import annotations

import sys
from functools import partial

import pytest

from longspan_eval import metrics

COLOURS = ("Color", "Color", "Date", "Number")

CASES = [
    # words without articles and punctuation: {cat, sat} of {cat, sat, down}: precision 1, recall 2/3
    ("qa_f1", "The cat sat", ["A cat sat down."], 0.8),
    # one dog and one cat are shared, of three words each
    ("qa_f1", "dog dog cat", ["dog cat cat"], 2 / 3),
    ("qa_f1", "an answer", ["wrong", "The ANSWER!"], 1.0),
    ("qa_f1", "something else", ["the answer"], 0.0),
    ("qa_f1", "the", ["a"], 0.0),
    ("qa_f1", "", ["answer"], 0.0),
    ("exact_match", " The  Answer! ", ["no", "answer"], 1.0),
    ("exact_match", "the answer is", ["answer"], 0.0),
    ("contains_any", "It was ADA ROTH, I think", ["nobody", "Ada Roth"], 1.0),
    ("contains_any", "Ada", ["Ada Roth"], 0.0),
    ("count", "5", ["5"], 1.0),
    ("count", "There are 5. No, 7; or 5", ["5"], 2 / 3),
    ("count", "15", ["5"], 0.0),
    ("count", "5", ["4", "5"], 1.0),
    ("count", "five", ["5"], 0.0),
    ("retrieval", "Paragraph 12", ["Paragraph 12"], 1.0),
    ("retrieval", "Paragraph 3 or 4", ["Paragraph 4"], 0.5),
    ("retrieval", "none of them", ["Paragraph 4"], 0.0),
    ("retrieval", "Paragraph 1", ["Paragraph 12"], 0.0),
    ("class_match", "Color", COLOURS, 1.0),
    ("class_match", "Color or Date", COLOURS, 0.5),
    ("class_match", "Color, Date or Number", COLOURS, 1 / 3),
    ("class_match", "Date", COLOURS, 0.0),
    ("class_match", "color", COLOURS, 0.0),
    # "Number" is said as part of the right name, and so does not count
    ("class_match", "Number of something", ("Number of something", "Number of something", "Number"), 1.0),
    ("class_match", "Number of something", ("Number", "Number of something", "Number"), 0.5),
    # x, blank, =, blank match: 2 * 4 / (5 + 5)
    ("edit_similarity", "x = 1", ["x = 2"], 0.8),
    ("edit_similarity", "\n```python\n# a comment\nx = 2\ny = 3", ["x = 2"], 1.0),
    ("edit_similarity", "// only a comment", ["x = 2"], 0.0),
    ("edit_similarity", "zzz", ["x = 2"], 0.0),
    # 2 * 2 / (3 + 3) is 0.667, rounded as a percentage
    ("edit_similarity", "abc", ["abd"], 0.67),
    # as sets of words: the, cat, on, mat of five each; full stops do not count
    ("rouge_l_by_sentence", "the cat sat on the mat.", ["the cat lay on the mat"], 0.8),
    ("rouge_l_by_sentence", "four five. one two three.", ["one two three. four five."], 1.0),
    ("rouge_l_by_sentence", "One two", ["one two"], 0.5),
    ("rouge_l_by_sentence", "one", ["two", "three"], 0.0),
    ("rouge_l_by_sentence", "", ["two"], 0.0),
    ("rouge_l_by_sentence", "...", ["two"], 0.0),
    ("rouge_l_by_sentence", "two", ["..."], 0.0),
    # words 4/5, pairs 2/4, subsequence 4/5
    ("rouge_geometric_mean", "the cat sat on mat", ["the cat lay on mat"], 0.32 ** (1 / 3)),
    ("rouge_geometric_mean", "one two", ["three", "One, two!"], 1.0),
    ("rouge_geometric_mean", "jumping over", ["jumps over"], 0.0),
    ("rouge_geometric_mean", "one two", ["two one"], 0.0),
]


@pytest.mark.parametrize(("name", "prediction", "references", "expected"), CASES)
def test_by_hand(name, prediction, references, expected):
    assert getattr(metrics, name)(prediction, references) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("name", sorted({case[0] for case in CASES}))
def test_references_are_a_sequence_that_holds_something(name):
    with pytest.raises(ValueError, match="not one string"):
        getattr(metrics, name)("text", "text")
    with pytest.raises(ValueError, match="at least one reference"):
        getattr(metrics, name)("text", [])


def test_each_rouge_takes_its_best_reference():
    # words: all of "b a", or 2/3 (of 1 and 1/2) of "a"; pairs and order: only "a b c" has them, at 4/5 words, 2/3 pairs
    mean = metrics.rouge_geometric_mean("a b", ["b a", "a b c"])
    assert mean == pytest.approx((1.0 * (2 / 3) * 0.8) ** (1 / 3))


def test_long_sentences_are_scored_and_leave_the_recursion_limit():
    before = sys.getrecursionlimit()
    said, right = "first " + "x " * 700, "first " + "y " * 500
    assert metrics.rouge_l_by_sentence(said, [right]) == pytest.approx(0.5, abs=1e-7)
    assert sys.getrecursionlimit() == before


@pytest.mark.parametrize(
    ("prediction", "expected"), [("\n\nColor\nDate", 1.0), ("Color Date\n", 0.5), ("Date\nColor", 0.0), ("", 0.0)]
)
def test_only_the_first_line_is_scored(prediction, expected):
    assert partial(metrics.on_first_line, metrics.class_match)(prediction, COLOURS) == expected


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [(" 5\n\nQuestion: 6", 1.0), ("\nQuestion: 5", 1.0), (" 6\n\nQuestion: 5", 0.0), ("5", 1.0), ("Question:", 0.0)],
)
def test_only_what_comes_before_the_next_question_is_scored(prediction, expected):
    assert metrics.before_next("Question:", metrics.exact_match, prediction, ["5"]) == expected


def test_references_that_a_score_cannot_use_are_named():
    with pytest.raises(ValueError, match="'7'"):
        metrics.retrieval("7", ["7"])
    with pytest.raises(ValueError, match="'Blue' is not among"):
        metrics.class_match("Blue", ["Blue", "Red"])


@pytest.mark.parametrize(("text", "expected"), [("A  THE cat, an\nanthem-an!", "cat antheman"), ("", "")])
def test_normalised(text, expected):
    assert metrics.normalised(text) == expected
