"""How samples become a figure."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from longspan_eval.figure import wilson
from longspan_eval.reduce import (
    against,
    answers,
    count,
    found,
    found_where,
    mean_of,
    mean_of_tasks,
    median_of,
    perplexity,
    ratio,
    window_perplexity,
)
from longspan_eval.sample import Sample


def sample(correct=0.0, loss=math.nan, scored=0, prediction="", seed=0, **figures):
    return Sample("a", 1, seed, None, "", prediction, correct, loss, scored, figures=figures)


def test_the_mean_score_has_wilsons_interval():
    figure = found([sample(1.0), sample(0.0), sample(0.5)])
    assert (figure.value, figure.n, figure.interval) == (0.5, 3, wilson(1.5, 3))
    assert math.isnan(found([]).value) and found([]).interval == (0.0, 1.0)
    assert count([sample(1.0)]) == replace(found([sample(1.0)]), unit="count")


def test_the_mean_score_of_some():
    samples = [sample(1.0, split=0.0), sample(0.0, split=1.0), sample(0.0, split=0.0), sample(1.0, split=math.nan)]
    assert found_where("split", 0.0)(samples, ()).value == 0.5
    assert found_where("split", 1.0)(samples, ()).n == 1


def test_perplexity():
    figure = perplexity([sample(loss=1.0, scored=10), sample(loss=4.0, scored=10)])
    assert figure.value == pytest.approx(math.exp(2.5)) and figure.n == 2
    # Losses of 1 and 4 have a deviation of 3 / √2, their mean an error of 1.5.
    assert figure.interval == pytest.approx((math.exp(2.5 - 12.706 * 1.5), math.exp(2.5 + 12.706 * 1.5)))
    assert perplexity([sample(loss=1.0, scored=10)]).interval is None and figure.blocks == 2
    assert perplexity([sample(loss=1.0, scored=30), sample(loss=4.0, scored=10)]).value == pytest.approx(math.exp(1.75))
    assert perplexity([sample(loss=1e9, scored=1)]).value == math.inf and math.isnan(perplexity([]).value)
    kept, measured = (perplexity([sample(loss=x, scored=1), sample(loss=2.0, scored=1)]) for x in (3.0, 3.00000049))
    assert kept == measured, "what the journal keeps of a loss is what counts"


def window(at, text="a", mode="whole"):
    return {"text": text, "at": at, "stride": 10, "mode": mode}


def test_windows_that_score_the_same_tokens_are_one_observation():
    windows = {0: window(0), 1: window(60), 2: window(150), 3: window(0, "b")}
    samples = losses(1.0, 2.0, 3.0, 4.0, scored=99)
    figure = window_perplexity(windows, 100)(samples, ())
    assert figure.value == pytest.approx(math.exp(2.5)) and (figure.n, figure.blocks) == (4, 2)
    # 0 to 160 to 250 hang together: of 0 to 2 the mean is 2, and it counts 3 of 4.
    half = 12.706 * math.sqrt(2) * math.sqrt(0.75**2 + 0.25**2)
    assert figure.interval == pytest.approx((math.exp(2.5 - half), math.exp(2.5 + half)))
    assert window_perplexity(windows, 50)(samples, ()).blocks == 4
    one = window_perplexity(windows, 100)(samples[:3], ())
    assert one.interval is None and str(one) == "7.39 n=3" and one.blocks == 1


def test_windows_that_score_new_tokens_are_observations_of_their_own():
    figure = window_perplexity({0: window(100, mode="new"), 1: window(110, mode="new")}, 100)(losses(1, 2), ())
    assert figure.blocks == 2 and figure.interval is not None


def losses(*values, scored=9):
    return [sample(loss=value, scored=scored, seed=seed) for seed, value in enumerate(values)]


def test_a_ratio_pairs_prompts_of_one_seed():
    # Seeds differ far more than the two readings of each: unpaired, the first three would look better than the window.
    figure = ratio(9)(losses(1.01, 2.02, 3.03), losses(1, 2, 3, 4, 5))
    assert figure.n == 3 and figure.value == pytest.approx(math.exp(0.02))
    assert figure.baseline == pytest.approx(math.exp(3))
    half = 4.303 * 0.01 / math.sqrt(3)  # differences of 0.01, 0.02 and 0.03
    assert figure.interval == pytest.approx((math.exp(0.02 - half), math.exp(0.02 + half)))


def test_a_ratio_leaves_out_prompts_whose_tokens_are_not_the_same():
    own = [*losses(1, 1), replace(losses(9)[0], seed=2, scored=8)]
    figure = ratio(9)(own, losses(1))
    assert (figure.n, figure.value, figure.interval) == (1, 1, (0.0, math.inf))
    assert math.isnan(ratio(9)(own, []).value) and math.isnan(ratio(9)([], []).baseline)
    assert ratio(9)(losses(900, 950), losses(1, 1)).value == math.inf


def test_means_and_medians_leave_out_what_is_not_known():
    samples = [sample(hit=1.0), sample(hit=math.nan), sample(), sample(hit=0.25), sample(hit=0.25)]
    assert mean_of("hit", "share")(samples, ()).value == 0.5
    assert mean_of("hit", "share")(samples, ()).n == 3
    assert median_of("hit", "share")(samples, ()).value == 0.25
    assert math.isnan(mean_of("other", "share")(samples, ()).value)


def test_means_of_shares_have_intervals():
    # 1 and 0.5 twice: a mean of 2/3, an error of 1/6, as that of 8 answers of which two thirds are right.
    figure = mean_of("hit", "share")([sample(hit=1.0), sample(hit=0.5), sample(hit=0.5)], ())
    assert figure.interval == pytest.approx(wilson(16 / 3, 8, 4.303))
    assert mean_of("hit", "share")([sample(hit=1.0)] * 8, ()).interval == wilson(8, 8)
    assert str(mean_of("hit", "share")([sample(hit=1.0)], ())) == "100.0% n=1"
    assert median_of("hit", "share")([sample(hit=1.0), sample(hit=0.5)], ()).interval is None


def test_means_of_other_numbers_have_students():
    figure = mean_of("gini", "number")([sample(gini=1.0), sample(gini=4.0)], ())
    assert figure.interval == pytest.approx((2.5 - 12.706 * 1.5, 2.5 + 12.706 * 1.5))
    alike = mean_of("gini", "number")([sample(gini=0.3)] * 8, ())
    assert alike.interval is None and str(alike) == "0.3"


def test_a_mean_of_tasks_has_an_interval_where_all_answers_are_alike():
    groups = [replace(sample(1.0), length=length) for length in (1, 2, 3, 4) for _ in range(4)]
    assert str(mean_of_tasks(groups)) == str(found(groups)) == "100% (81-100) n=16"
    missed = [sample(0.0)] * 2
    assert str(mean_of_tasks(missed)) == str(found(missed)) == "0% (0-66) n=2"


def test_ratios_of_times_are_within_a_round():
    # The second round was disturbed, both rows of it.
    own = [sample(seed=n, prefill=seconds) for n, seconds in enumerate((2.0, 60.0, 3.0))]
    base = [sample(seed=n, prefill=seconds) for n, seconds in enumerate((1.0, 30.0, 1.0))]
    figure = against("prefill")(own, base)
    assert figure.value == 2.0 and str(figure) == "2" and figure.n == 3
    assert math.isnan(against("prefill")(own, []).value) and against("prefill")(own, base[:-1]).n == 2


def test_answers_stay_in_their_cell():
    assert str(answers([sample(prediction="a | b\nc")])) == "a | b c"
    assert str(answers([sample(prediction=" ")])) == "(nothing)"
