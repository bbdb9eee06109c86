"""Scores of the synthetic tasks, with values worked out by hand."""

from __future__ import annotations

import pytest

from longspan_eval.tasks import scores
from longspan_eval.tasks.counting_stars import list_complete

UUID = "1710cf53-27ac-435a-ba97-c643656412a9"
FOUR = ("1111111", "2222222", "3333333", "4444444")
STARS = ("15", "117", "42", "69")


@pytest.mark.parametrize(
    ("prediction", "references", "expected"),
    [
        (" 1111111, 2222222, 3333333, and 4444444.", FOUR, 1.0),
        ("4444444 and 1111111", FOUR, 0.5),
        ("11111112222222", FOUR, 0.5),
        ("1111111 1111111 1111111", FOUR, 0.25),
        ("111111 222222", FOUR, 0.0),
        ("", FOUR, 0.0),
        ("You should EAT A SANDWICH in dolores park.", ("sandwich", "Dolores Park", "sunny day"), 2 / 3),
        ("on a sunny day", ("sandwich", "Dolores Park", "sunny day"), 1 / 3),
        ("go to the museum", ("sandwich", "Dolores Park", "sunny day"), 0.0),
    ],
)
def test_contained(prediction, references, expected):
    assert scores.contained(prediction, references) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [
        (" Ghost Pearl. The legendary item hidden on the Sand Island is Stardust Shard.", 1.0),
        (" Ghost Pearl. The legendary item hidden on the Sand Island is Ghost Shard.", 0.5),
        (" ghost pearl, stardust shard", 0.0),
        ("", 0.0),
    ],
)
def test_keywords(prediction, expected):
    assert scores.keywords(prediction, ("Ghost Pearl", "Stardust Shard")) == expected


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [
        (" 07123.", 1.0),
        ("The pass key is 07123, not 99999", 1.0),
        (" 7123", 0.0),
        (" 071234", 0.0),
        (" 99999, or 07123", 0.0),
        (" 07,123", 0.0),
        ("none", 0.0),
        ("", 0.0),
    ],
)
def test_first_integer(prediction, expected):
    assert scores.first_integer(prediction, ("07123",)) == expected


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [
        (" Ada lives in Lisbon.", 1.0),
        ("\n\n Lisbon\nBoris lives in Porto.", 1.0),
        (" Ada lives in Lisbon. Boris lives in Porto.", 0.0),
        (" Lisbon is where she lives.", 0.0),
        (" Ada lives in NewLisbon.", 0.0),
        ("", 0.0),
    ],
)
def test_first_line_ends(prediction, expected):
    assert scores.first_line_ends(prediction, ("Lisbon",)) == expected


def test_a_line_is_complete_after_its_end_and_not_before():
    assert scores.line_complete(" Lisbon.\n")
    assert not scores.line_complete("\n Lisbon.")


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        (" 45", "45", 1.0),
        ("45.", "45", 1.0),
        ("045", "45", 1.0),
        ("45.0", "45", 1.0),
        ("45.5", "45", 0.0),
        ("44.5", "44.5", 1.0),
        ("44", "44.5", 0.0),
        ("is 45, not 46", "45", 1.0),
        ("is 46, not 45", "45", 0.0),
        ("455", "45", 0.0),
        ("fortyfive", "45", 0.0),
    ],
)
def test_first_number(prediction, reference, expected):
    assert scores.first_number(prediction, (reference,)) == expected


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [
        (f' "{UUID}"', 1.0),
        (f"{UUID}\n", 1.0),
        (f'{{"key":"{UUID}"}}', 1.0),
        (f"the value is {UUID}.", 1.0),
        (UUID[:-1], 0.0),
        (UUID + "0", 0.0),
        (UUID.upper(), 0.0),
        ("", 0.0),
    ],
)
def test_word_in_answer(prediction, expected):
    assert scores.word_in_answer(prediction, (UUID,)) == expected


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [
        ("15, 117, 42, 69]}", 1.0),
        ('{"little_penguin": [69, 42, 117, 15]}', 1.0),
        ('```json\n{"little_penguin": [15, 42]}\n```', 0.5),
        ("15, 15, 15, 15]", 0.25),
        ("15, 15, 117, 117, 42, 69]", 0.5),  # the first four count
        ("15, 15, 1, 1, 117, 2, 42, 69]", 0.25),
        ("1, 2, 3, 4, 15, 117, 42, 69]", 0.0),
        ("15, 117]} and then 42, 69", 0.5),
        ("15 117 42 69", 1.0),
        ("151, 1174]", 0.0),
        ("]", 0.0),
        ("", 0.0),
    ],
)
def test_list_membership(prediction, expected):
    assert scores.list_membership(prediction, STARS) == expected


def test_a_list_is_complete_when_it_is_closed():
    assert list_complete("15, 117]") and not list_complete("15, 117")


@pytest.mark.parametrize("name", ["contained", "keywords", "first_integer", "first_number", "word_in_answer"])
def test_references_are_some_answers(name):
    score = getattr(scores, name)
    with pytest.raises(ValueError, match="sequence of answers"):
        score("12", "12")
    with pytest.raises(ValueError, match="at least one reference"):
        score("12", ())
