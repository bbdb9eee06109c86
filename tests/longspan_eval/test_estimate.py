"""How long a measure will take."""

from __future__ import annotations

import pytest

from longspan_eval.estimate import Pace, duration
from longspan_eval.measure import TaskPrompt
from longspan_eval.spec import parse_spec
from longspan_eval.subject import Subject
from support.studies import DEEP, MADE, answer


def prompt(task, spec, length):
    return TaskPrompt(parse_spec(spec), length, task=task)


@pytest.fixture
def pace():
    return Pace(Subject(512, "a" * 64, crossover=1024))


def add(pace, seconds, *place):
    pace.add(prompt(*place), answer(prompt(*place), seconds))


def test_nothing_known_weighs_lengths_alone(pace):
    assert pace.of_method(prompt(MADE, "dca", 512)) is None
    short, long = (pace.guess(prompt(MADE, "dca", n)) for n in (1024, 4096))
    assert long / short == pytest.approx(4 * 5 / 2)  # four times the tokens, 1 + 4 against 1 + 1 of work each


def test_the_nearest_length_of_the_method_grows_as_it_does(pace):
    for spec in ("dca", "esa"):
        add(pace, 2.0, MADE, spec, 1024)
        add(pace, 4.0, MADE, spec, 1024)
    assert pace.guess(prompt(MADE, "dca", 1024)) == 3.0
    assert pace.of_method(prompt(MADE, "dca", 4096)) == pytest.approx(3 * 10)
    assert pace.of_method(prompt(MADE, "esa", 4096)) == pytest.approx(3 * 4), "it attends to as many keys"
    assert pace.of_method(prompt(MADE, "stock", 4096)) is None
    assert pace.guess(prompt(MADE, "stock", 1024)) == 3.0


def test_its_own_task_counts_before_another(pace):
    add(pace, 9.0, DEEP, "dca", 512)
    assert pace.of_method(prompt(MADE, "dca", 512)) == 9.0
    add(pace, 1.0, MADE, "stock", 512)
    assert pace.of_method(prompt(MADE, "dca", 512)) == 9.0 and pace.guess(prompt(MADE, "esa", 512)) == 1.0
    add(pace, 2.0, MADE, "dca", 512)
    assert pace.of_method(prompt(MADE, "dca", 512)) == 2.0


def test_errors_say_nothing(pace):
    one = prompt(MADE, "dca", 512)
    pace.add(one, one.failed("out of memory"))
    assert pace.of_method(one) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 seconds"),
        (0.514, "0.51 seconds"),
        (2.04, "2 seconds"),
        (12.3, "12 seconds"),
        (89.4, "89 seconds"),
        (120, "2.0 minutes"),
        (7200, "2.0 hours"),
    ],
)
def test_duration(seconds, text):
    assert duration(seconds) == text
