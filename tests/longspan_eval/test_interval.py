"""Intervals hold their value in 95 of 100 cases, or nearly, also with a few samples; and none has no width."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from longspan_eval.figure import wilson
from longspan_eval.interval import of_groups, of_shares, student
from longspan_eval.perplexity import over_prompts
from longspan_eval.reduce import window_perplexity
from longspan_eval.sample import Sample


def covered(interval_of, value, draw, trials):
    """The share of trials whose interval holds the value."""
    rng, held = random.Random(0), 0
    for _ in range(trials):
        low, high = interval_of(draw(rng))
        held += low <= value <= high
    return held / trials


def answers(rng, rate, n):
    """Right and wrong answers."""
    return [float(rng.random() < rate) for _ in range(n)]


@pytest.mark.parametrize(
    ("n", "quantile"), [(2, 12.706), (3, 4.303), (5, 2.776), (6, 2.571), (9, 2.306), (21, 2.086), (101, 1.984)]
)
def test_students_quantile_is_the_printed_one(n, quantile):
    assert student(n) == pytest.approx(quantile, abs=0.004)


def test_students_quantile_falls_to_the_normal_one():
    found = [student(n) for n in range(2, 2000)]
    assert found == sorted(found, reverse=True) and found[-1] == pytest.approx(1.96, abs=0.002)


@pytest.mark.parametrize("scores", [[1.0] * 8, [0.0, 0.0], [1.0, 0.0, 0.0, 1.0, 1.0], [0.5, 0.25, 1.0]])
def test_of_one_group_it_is_wilsons(scores):
    assert of_groups([scores]) == pytest.approx(wilson(math.fsum(scores), len(scores)))


def test_of_groups_that_are_alike_it_is_that_of_all_answers():
    assert of_groups([[1.0] * 4] * 4) == pytest.approx(wilson(16, 16))
    assert of_groups([[1.0, 0.0]] * 5) == pytest.approx(wilson(5, 10))


def test_groups_that_differ_have_a_smaller_one_than_all_answers_together():
    low, high = of_groups([[1.0] * 20, [0.0] * 20])
    between = wilson(20, 40)
    assert between[0] < low < 0.5 < high < between[1]


def test_a_small_group_counts_as_much_in_the_mean_and_in_its_interval():
    low, high = of_groups([[1.0, 0.0] * 50, [1.0, 0.0]])
    together = wilson(51, 102)
    assert high - low > 2 * (together[1] - together[0])


@pytest.mark.parametrize(
    "groups",
    [[[1.0] * 4] * 4, [[0.0, 0.0]], [[1.0], [1.0]], [[0.5] * 3] * 2, [[1.0] * 3, [0.0] * 3], [[0.3], [1.0, 1.0]]],
)
def test_an_interval_of_groups_has_a_width_inside_0_to_1(groups):
    low, high = of_groups(groups)
    assert 0 <= low < high <= 1 and low <= fmean(map(fmean, groups)) <= high and high - low > 0.1


@pytest.mark.parametrize(
    ("rates", "sizes", "trials"),
    [
        ([0.9] * 4, [2] * 4, 2000),
        ([0.95] * 4, [4] * 4, 2000),
        ([0.99] * 17, [10] * 17, 500),
        ([0.5] * 4, [4] * 4, 1000),
        ([0.99, 0.9, 0.5, 0.1], [2] * 4, 1000),
        ([0.99, 0.9, 0.5, 0.1], [100] * 4, 300),
        ([1.0, 1.0, 0.0, 0.0], [10] * 4, 300),
        ([0.9, 0.5], [50, 2], 1000),
        ([0.9] * 10, [1] * 10, 1000),
    ],
)
def test_coverage_of_means_of_groups(rates, sizes, trials):
    def draw(rng):
        return [answers(rng, rate, n) for rate, n in zip(rates, sizes, strict=True)]

    assert covered(of_groups, fmean(rates), draw, trials) >= 0.9


def test_coverage_of_means_of_graded_scores():
    """F1s: one in five is 0, the others are anything."""

    def draw(rng):
        return [[(rng.random() > 0.2) * rng.random() for _ in range(3)] for _ in range(4)]

    assert covered(of_groups, 0.4, draw, 1000) >= 0.93


def test_shares_of_0_and_1_have_wilsons():
    assert of_shares([1.0] * 8) == wilson(8, 8) and of_shares([0.0, 1.0]) == wilson(1, 2)


def test_shares_that_are_all_alike_have_a_width():
    assert of_shares([0.5] * 4) == wilson(2, 4)


def test_shares_that_hardly_vary_have_a_narrow_one():
    low, high = of_shares([0.56, 0.58] * 4)
    assert (low, high) == pytest.approx((0.57 - 2.365 * 0.00378, 0.57 + 2.365 * 0.00378), abs=2e-4)


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize(
    ("mean", "draw"),
    [
        (0.9, lambda rng: fmean(answers(rng, 0.9, 4))),
        (0.95, lambda rng: fmean(answers(rng, 0.95, 12))),
        (0.9, lambda rng: rng.betavariate(9, 1)),
        (0.5, lambda rng: rng.random()),
        (0.57, lambda rng: rng.betavariate(570, 430)),
    ],
    ids=["of 4 layers", "of 12 heads", "skewed", "uniform", "narrow"],
)
def test_coverage_of_means_of_shares(n, mean, draw):
    def shares(rng):
        return [draw(rng) for _ in range(n)]

    assert covered(of_shares, mean, shares, 800) >= 0.91
    low, high = of_shares(shares(random.Random(1)))
    assert 0 <= low < high <= 1


@pytest.mark.parametrize("n", [2, 3, 8])
def test_coverage_of_perplexities(n):
    def interval_of(losses):
        return over_prompts([(loss, 9) for loss in losses], range(n))[1]

    def draw(rng):
        return [rng.gauss(3, 0.3) for _ in range(n)]

    assert 0.93 <= covered(interval_of, math.exp(3), draw, 1000) <= 0.97


@pytest.mark.parametrize("documents", [(2, 2, 2, 2, 2, 2), (1, 1, 2, 3, 5)])
def test_coverage_of_perplexities_of_windows_that_overlap(documents):
    """Documents of so many windows' lengths, each with a loss of its own around which those of its tokens lie."""
    length, stride = 64, 16
    records = [
        {"text": f"{n}", "at": at, "stride": stride, "mode": "whole"}
        for n, size in enumerate(documents)
        for at in range(0, length * (size - 1) + 1, stride)
    ]
    windows = dict(enumerate(records))

    def draw(rng):
        own = {f"{n}": rng.gauss(3, 0.3) for n in range(len(documents))}
        tokens = {name: [rng.gauss(mean, 1) for _ in range(length * max(documents))] for name, mean in own.items()}
        return [fmean(tokens[one["text"]][one["at"] + 1 : one["at"] + length]) for one in records]

    def interval_of(losses, windows=windows):
        samples = [Sample("a", length, n, None, "", loss=loss, scored=length - 1) for n, loss in enumerate(losses)]
        return window_perplexity(windows, length)(samples, ()).interval

    def each_alone(losses):
        return interval_of(losses, {n: one | {"text": f"{n}"} for n, one in windows.items()})

    assert covered(interval_of, math.exp(3), draw, 200) >= 0.9
    assert covered(each_alone, math.exp(3), draw, 200) < 0.8
