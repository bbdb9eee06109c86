"""How long a prompt will take."""

from __future__ import annotations

import pytest

from longspan_eval.estimate import Pace, duration
from longspan_eval.workers import error_sample
from studies import DEEP, MADE, SUBJECT, answer, study

CELLS = {
    (c.task.name, c.row.label, c.length): c.asks[0]
    for c in study((MADE, DEEP), ("dca", "esa"), (512, 1024, 4096)).plan(SUBJECT)
}


@pytest.fixture
def pace():
    return Pace(1024, lambda ask: ask.row.label == "esa")


def add(pace, seconds, *place):
    pace.add(CELLS[place], answer(CELLS[place], seconds))


def test_nothing_known_weighs_lengths_alone(pace):
    assert pace.of_row(CELLS["made", "dca", 512]) is None
    short, long = (pace.guess(CELLS["made", "dca", n]) for n in (1024, 4096))
    assert long / short == pytest.approx(4 * 5 / 2)  # four times the tokens, 1 + 4 against 1 + 1 of work each


def test_the_nearest_length_of_the_row_grows_as_its_method_does(pace):
    for place in (("made", "dca", 1024), ("made", "esa", 1024)):
        add(pace, 2.0, *place)
        add(pace, 4.0, *place)
    assert pace.guess(CELLS["made", "dca", 1024]) == 3.0
    assert pace.of_row(CELLS["made", "dca", 4096]) == pytest.approx(3 * 10)
    assert pace.of_row(CELLS["made", "esa", 4096]) == pytest.approx(3 * 4)
    assert pace.of_row(CELLS["made", "stock", 4096]) is None
    assert pace.guess(CELLS["made", "stock", 1024]) == 3.0


def test_its_own_task_counts_before_another(pace):
    add(pace, 9.0, "deep", "dca", 512)
    assert pace.of_row(CELLS["made", "dca", 512]) == 9.0
    add(pace, 1.0, "made", "stock", 512)
    assert pace.of_row(CELLS["made", "dca", 512]) == 9.0 and pace.guess(CELLS["made", "esa", 512]) == 1.0
    add(pace, 2.0, "made", "dca", 512)
    assert pace.of_row(CELLS["made", "dca", 512]) == 2.0


def test_errors_say_nothing(pace):
    ask = CELLS["made", "dca", 512]
    pace.add(ask, error_sample(ask, "out of memory"))
    assert pace.of_row(ask) is None


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
