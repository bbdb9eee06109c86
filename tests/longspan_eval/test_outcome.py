"""Cells measured: mean, interval, by depth, and one word where there is no score."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from longspan_eval.outcome import BINS, outcome
from longspan_eval.results import wilson
from longspan_eval.workers import error_sample
from studies import DEEP, MADE, SUBJECT, answer, study


def cell(made):
    return made.plan(SUBJECT)[0]


def measured(cell, scores, **more):
    return {ask.key: replace(answer(ask), correct=score, **more) for ask, score in zip(cell.asks, scores, strict=False)}


def test_the_mean_of_right_and_wrong_has_wilsons_interval():
    one = cell(study())
    made = outcome(one, measured(one, [1, 1, 0]))
    assert (made.planned, made.n, made.score, made.interval) == (4, 3, pytest.approx(2 / 3), wilson(2, 3))
    assert (made.task, made.row, made.length, made.multiple, made.seconds) == ("made", "stock", 512, 1.0, 5.12)
    assert made.depths == () and made.mark is None and made.error is None and made.tokens == 9


def test_scores_between_have_an_interval_that_holds_them():
    one = cell(study())
    made = outcome(one, measured(one, [0.5, 0.5, 0.5, 0.5]))
    assert made.score == 0.5 and made.interval == wilson(2, 4) and made.interval[0] < 0.3 < 0.7 < made.interval[1]


def test_by_asked_depth():
    one = cell(study((DEEP,), depths=3, samples=2))
    made = outcome(one, measured(one, [1, 0, 0.5, 1, 0, 1]))
    assert [(d.low, d.high, d.n, d.score) for d in made.depths] == [(0, 0, 2, 1), (0.5, 0.5, 2, 0), (1, 1, 2, 0.75)]
    assert made.depths[0].interval == wilson(2, 2)
    early = outcome(one, measured(one, [1]))
    assert [d.n for d in early.depths] == [1, 0, 0] and math.isnan(early.depths[1].score)


def test_depths_left_to_the_seeds_are_told_apart_in_parts():
    one = cell(study((DEEP,), samples=7))
    where = [0.0, 0.19, 0.2, 0.5, 0.8, 1.0, 0.999]
    samples = {a.key: replace(answer(a), depth=d, correct=d) for a, d in zip(one.asks, where, strict=True)}
    made = outcome(one, samples)
    assert [d.n for d in made.depths] == [2, 1, 1, 0, 3] and len(made.depths) == BINS
    assert sum(d.n for d in made.depths) == made.n


@pytest.mark.parametrize(
    ("error", "mark"),
    [("out of memory", "out of memory"), ("skipped: too long", "skipped"), ("DCA: a rule is broken", "error")],
)
def test_a_failure_is_the_cells(error, mark):
    one = cell(study((DEEP,), depths=2))
    samples = measured(one, [1, 1]) | {one.asks[2].key: error_sample(one.asks[2], error)}
    made = outcome(one, samples)
    assert (made.error, made.mark, made.n) == (error, mark, 0) and math.isnan(made.score)
    assert [d.n for d in made.depths] == [0, 0]


def test_skipped_and_not_begun():
    one = cell(study((MADE,)))
    assert outcome(one, measured(one, [1]), "skipped: too long").mark == "skipped"
    assert outcome(one, {}).mark == "·" and outcome(one, {}).interval == (0.0, 1.0)
