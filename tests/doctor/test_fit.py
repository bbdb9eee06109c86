"""Which prefill chunks are measured, the line through them, and the error of what it says of a longer text."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from longspan.doctor.fit import AIM, FEWEST, NOISE, PREFILL_CHUNK, Line, TimeRange, plan, tokens_row

LENGTHS = [(1, 64), (300, 64), (8192, 512), (32_768, 512), (8192, 8192), (13_910, 8192), (32_768, 8192)]
LENGTHS += [(200_000, 8192), (32_768, 32_768), (131_072, 32_768), (1 << 20, 8192)]


@pytest.mark.parametrize(("length", "window"), LENGTHS)
def test_a_plan_sees_the_side_of_the_window_that_the_text_ends_on(length, window):
    made = plan(length, window, dense=False)
    steps = made.prefill_chunks
    assert steps[0][0] == 0 and steps[-1][1] == made.stop <= length
    assert all(a == b for (_, a), (b, _) in pairwise(steps)) and all(b - a <= PREFILL_CHUNK for a, b in steps)
    if made.stop == length:
        return
    fitted = [step for step in steps if step[0] >= made.fitted]
    assert len(fitted) >= FEWEST and all(b - a == PREFILL_CHUNK for a, b in fitted)
    assert all(b >= window / 4 for _, b in fitted)
    assert length <= window or all(a >= window for a, _ in fitted)


@pytest.mark.parametrize(("length", "window"), LENGTHS)
def test_a_method_that_reads_every_key_has_one_line_from_a_quarter_of_the_window_on(length, window):
    dense, chosen = plan(length, window, dense=True), plan(length, window, dense=False)
    assert dense.fitted <= chosen.fitted and dense.stop <= chosen.stop and dense.fitted <= window / 4
    assert dense.stop == length or dense.stop >= dense.fitted + FEWEST * PREFILL_CHUNK
    assert dense.stop == length or length <= window or dense.stop > window


@pytest.mark.parametrize(("length", "window"), LENGTHS)
def test_a_plan_is_no_longer_than_noise_asks_for(length, window):
    made = plan(length, window, dense=False)
    if made.stop < length:
        rows = [tokens_row(a, b) for a, b in made.prefill_chunks if a >= made.fitted]
        fit = Line(rows, [1.0] * len(rows))
        assert 2 * fit.error(tokens_row(made.stop, length)) <= AIM * length / PREFILL_CHUNK


@pytest.mark.parametrize(("a", "b"), [(1e-4, 0.0), (1e-4, 1e-8), (0.0, 1e-8)])
def test_a_fit_is_the_line_that_times_follow(a, b):
    rows = [tokens_row(n, n + 2048) for n in range(8192, 16_384, 2048)]
    fit = Line(rows, [a * x + b * y for x, y in rows])
    assert (fit.a, fit.b) == pytest.approx((a, b), abs=1e-12)


@pytest.mark.parametrize("times", [(3.0, 2.0, 1.0), (1.0, 100.0, 300.0)])
def test_a_fit_is_never_negative(times):
    fit = Line([tokens_row(n, n + 2048) for n in range(8192, 14_336, 2048)], times)
    assert fit.a >= 0 and fit.b >= 0 and fit.at(tokens_row(0, 10**6)) > 0


@pytest.mark.parametrize("times", [(3.0, 2.0, 2.5), (1.0, 1.1, 1.0), (1.0, 2.0, 3.1)])
def test_a_range_is_inside_what_the_last_time_allows(times):
    fit = Line([tokens_row(n, n + 2048) for n in range(8192, 14_336, 2048)], times)
    far = tokens_row(14_336, 10**6)
    low, high = fit.range(far)
    last = fit.at(fit.rows[-1])
    assert last * far[0] / 2048 * 0.999 <= low < high <= last * far[1] / fit.rows[-1][1] * 1.001


def test_an_error_is_that_of_many_runs():
    random = Random(0)
    rows, far = [tokens_row(n, n + 2048) for n in range(8192, 20_480, 2048)], tokens_row(20_480, 40_960)
    true = [1e-3 * x + 1e-7 * y for x, y in rows]
    said = Line(rows, true).error(far)
    values = []
    for _ in range(2000):
        values.append(Line(rows, [random.gauss(y, NOISE * sum(true) / len(true)) for y in true]).at(far))
    middle = sum(values) / len(values)
    assert (sum((x - middle) ** 2 for x in values) / len(values)) ** 0.5 == pytest.approx(said, rel=0.1)


@pytest.mark.parametrize(("low", "high", "tells"), [(1.0, 2.0, True), (1.0, 4.0, False), (0.0, 1.0, False)])
def test_what_is_too_wide_tells_nothing(low, high, tells):
    assert TimeRange(low, high).tells is tells and low <= TimeRange(low, high).middle <= high
