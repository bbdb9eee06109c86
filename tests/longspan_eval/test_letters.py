"""Which option an answer names: InfiniteBench's two rules as published, L-Eval's by its definition."""

from __future__ import annotations

import pytest

from longspan_eval import letters

BOOK = ("Tomas", "B")
DEBUG = ("spread", "C")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("B", 1),
        (" B. Tomas", 1),
        ("C", 0),
        ("C, but B is close", 0),
        ("", 0),
        ("  \n", 0),
        ("Tomas", 1),
        ("Tomas rowed", 0),
        ("The answer is: B", 1),
        ("The answer is: Tomas.", 1),
        ("the answer is C, not B", 0),
        ("My option is B", 1),
        ("The answer is:", 0),
        ("I think it's B or C", 1),
        ("I think it's C or B", 0),
        ("I do not know", 0),
        ("Because he rowed", 1),  # the rule looks at the first character alone
        ("All four", 0),
    ],
)
def test_book_choice(said, expected):
    assert letters.book_choice(said, BOOK) == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("C. spread", 1),
        (" C: spread", 1),
        ("C", 0),  # the rule wants a sign after it
        ("D. scaled", 0),
        ("The correct option is: C", 1),
        ("The answer is: **C**", 1),
        ("The answer is: `spread`", 1),
        ("The answer is: D. Or C.", 0),
        ("Answer: C", 0),
        ("answer: C", 1),
        ("It is:", 0),
        ("", 0),
    ],
)
def test_code_debug(said, expected):
    assert letters.code_debug(said, DEBUG) == expected


@pytest.mark.parametrize("score", [letters.book_choice, letters.code_debug])
@pytest.mark.parametrize("references", ["AB", ("B",), ()])
def test_infinitebench_needs_text_and_letter(score, references):
    with pytest.raises(ValueError, match="text and its letter"):
        score("B", references)


@pytest.mark.parametrize(
    ("answer", "options"),
    [
        ("B", "B"),
        (" B.", "B"),
        ("(C) Moss", "C"),
        ("A", "A"),
        ("A. Long valleys", "A"),
        ("A and C", "AC"),
        ("A, C and D.", "ACD"),
        ("A/C", "AC"),
        ("ACD", "ACD"),
        ("**AC**", "AC"),
        ('"B"', "B"),
        ("'B'", "B"),
        ("The answers are 'A' and 'C'.", "AC"),
        ("D's claim is false", ""),
        ("(A), (B)", "AB"),
        ("(B) C major", "B"),
        ("B, as option C is false", "B"),
        ("(A) Both A and C", "A"),
        ("A, B, or C", "ABC"),
        ("A & D", "AD"),
        ("A good question; the answer is B", "B"),
        ("The correct answers are A, C and D because A holds", "ACD"),
        ("Answer: B. A would be wrong", "B"),
        ("option B, and not A", "B"),
        ("I would say B", "B"),
        ("Both B and D are right", "BD"),
        ("B\nC", "B"),
        ("The answer is A because the gear is brass", "A"),
        ("Answer: A, since B is false", "A"),
        ("A for this reason", "A"),
        ("The answer is A for-profit school", ""),
        ("A dog", ""),
        ("Dogs And Cats", ""),
        ("none", ""),
        ("", ""),
    ],
)
def test_options_named(answer, options):
    assert "".join(sorted(letters.options_named(answer))) == options


@pytest.mark.parametrize(("said", "expected"), [("B", 1), ("The answer is B.", 1), ("A", 0), ("AB", 0), ("", 0)])
def test_one_letter(said, expected):
    assert letters.one_letter(said, ["B"]) == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [("AC", 1), ("A and C", 1), ("C, A", 1), ("A", 0.25), ("C.", 0.25), ("ABC", 0), ("AB", 0), ("B", 0), ("", 0)],
)
def test_letters_give_a_quarter_for_a_part(said, expected):
    assert letters.letters(said, ["AC"]) == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("True", 1),
        ("TRUE, by the story", 1),
        ("It is true.", 1),
        ("False", 0),
        ("untrue", 0),
        ("", 0),
        ("False. True", 0),
    ],
)
def test_verdict_is_the_story_s_not_the_world_s(said, expected):
    assert letters.verdict(said, ["True [fact: False]"]) == expected


def test_no_verdict_is_not_that_of_a_reference_without_one():
    assert letters.verdict("Perhaps", ["perhaps"]) == 0


@pytest.mark.parametrize("score", [letters.one_letter, letters.letters, letters.verdict])
def test_references_are_a_sequence(score):
    with pytest.raises(ValueError, match="not one string"):
        score("true B", "B")
