"""Cells: counts with intervals, and perplexity against the same tokens in the window."""

from __future__ import annotations

import math

import pytest

from longspan_eval.results import Sample, wilson
from longspan_eval.rows import parse_row
from longspan_eval.scored_passkey import TARGETS, plan_cell
from longspan_eval.subject import Subject
from longspan_eval.summary import summarise

SUBJECT = Subject(512, "a" * 64)
CELL = plan_cell(SUBJECT, parse_row("dca"), 4, "prose", 5)
BASELINE = plan_cell(SUBJECT, parse_row("stock"), 1, "prose", 5, depth=0.0)


def sample(seed, loss, correct=1.0, scored=TARGETS, error=None):
    return Sample("any", 1, seed, 0.5, "1", "1", correct, loss, scored, 2.0, error)


def answers(cell, losses, **more):
    """A sample for the first prompts of a cell."""
    return {ask.key: sample(ask.seed, loss, **more) for ask, loss in zip(cell.asks, losses, strict=False)}


def test_counts_and_interval():
    samples = {**answers(CELL, [1, 1, 1], correct=0.0), **answers(CELL, [1, 1])}
    made = summarise(CELL, samples, BASELINE)
    assert (made.planned, made.n, made.found, made.rate) == (5, 3, 2, pytest.approx(2 / 3))
    assert made.interval == wilson(2, 3) and made.seconds == 2.0
    assert (made.row, made.multiple, made.length, made.filler) == ("dca", 4, 2048, "prose")
    assert math.isnan(made.ratio) and made.compared == 0 and made.error is None


def test_nothing_measured():
    made = summarise(CELL, {}, BASELINE)
    assert made.n == 0 and math.isnan(made.rate) and math.isnan(made.perplexity) and math.isnan(made.comparable)


def test_the_ratio_pairs_prompts_of_one_seed():
    # Seeds differ far more than the two readings of each: unpaired, the first three would look better than the window.
    samples = {**answers(CELL, [1.01, 2.02, 3.03]), **answers(BASELINE, [1, 2, 3, 4, 5])}
    made = summarise(CELL, samples, BASELINE)
    assert made.compared == 3
    assert made.ratio == pytest.approx(math.exp(0.02)) and made.perplexity == pytest.approx(math.exp(2.02))
    assert made.in_window == pytest.approx(math.exp(3)) and made.comparable == pytest.approx(math.exp(3.02))
    low, high = made.ratio_interval
    assert math.log(high) - 0.02 == pytest.approx(1.96 * 0.01 / math.sqrt(3)) == 0.02 - math.log(low)


def test_prompts_that_scored_other_tokens_are_left_out():
    samples = {**answers(CELL, [1, 1, 1]), **answers(BASELINE, [1, 1, 1])}
    samples[CELL.asks[1].key] = sample(1, 9.0, scored=TARGETS - 1)
    samples[BASELINE.asks[2].key] = sample(2, 9.0, error="out of memory")
    made = summarise(CELL, samples, BASELINE)
    assert made.n == 3 and made.compared == 1 and made.ratio == 1 and made.ratio_interval == (0.0, math.inf)


def test_an_error_is_the_cells():
    samples = answers(CELL, [1, 1])
    samples[CELL.asks[2].key] = sample(2, math.nan, error="out of memory")
    made = summarise(CELL, samples, BASELINE)
    assert made.error == "out of memory" and made.n == made.found == 0 and math.isnan(made.ratio)


def test_a_loss_beyond_exp_is_infinite():
    samples = {**answers(CELL, [900, 950]), **answers(BASELINE, [1, 1])}
    assert summarise(CELL, samples, BASELINE).ratio == math.inf
