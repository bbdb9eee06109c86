"""From the times of a run to an estimate, or to the reason why there is none."""

from __future__ import annotations

import pytest

from longspan.doctor.estimate import estimated
from longspan.doctor.fit import plan, tokens_row
from longspan.doctor.measuring import NoEstimateError, Point, Run


def run_of(made, inside, beyond, window, change=lambda n, seconds: seconds):
    """A run whose tokens take ``a + b · n`` seconds, by one line inside the window and another beyond it."""

    def line(n):
        return inside if n < window else beyond

    chunks, tokens = [], []
    for n, (start, stop) in enumerate(made.prefill_chunks):
        (a, b), (x, y) = line(start), tokens_row(start, stop)
        chunks.append(Point(start, stop, change(n, a * x + b * y)))
        if start >= made.fitted or stop == made.stop:
            a, b = line(stop)
            tokens.append(Point(stop, stop + 16, change(n, 100 * (a + b * stop))))
    return Run("cpu", tuple(chunks), tuple(tokens), 1, 1.0)


@pytest.mark.parametrize(
    ("beyond", "growth"), [((1e-3, 0.0), "linear"), ((1e-3, 1e-8), "linear"), ((1e-3, 1e-6), "quadratic")]
)
@pytest.mark.parametrize("length", [16_384, 32_768, 100_000])
def test_the_line_beyond_the_window_is_what_counts(beyond, growth, length):
    window, inside = 8192, (2e-3, 3e-7)
    part = plan(length, window, dense=False)
    made = estimated(run_of(part, inside, beyond, window), part)
    read = sum(
        a * x + b * y for (a, b), (x, y) in ((inside, tokens_row(0, window)), (beyond, tokens_row(window, length)))
    )
    token = 100 * (beyond[0] + beyond[1] * length)
    for interval, seconds in ((made.prefill_seconds, read), (made.token_seconds, token)):
        assert interval.low < seconds < interval.high and interval.tells
        assert interval.middle == pytest.approx(seconds, rel=0.25)
    assert made.growth == growth and [check.what for check in made.checks] == ["reading", "token"]


def test_a_text_that_was_read_needs_no_line():
    whole = plan(1000, 64, dense=False)
    made = estimated(run_of(whole, (1e-3, 0.0), (1e-3, 0.0), 64), whole)
    assert made.prefill_seconds.middle == pytest.approx(1.0) and made.checks == () and made.growth == "linear"


@pytest.mark.parametrize(("times", "holds"), [(1.0, True), (1.1, True), (1.6, False), (0.5, False)])
def test_a_later_time_is_held_against_those_before(times, holds):
    made = plan(32_768, 8192, dense=False)
    run = run_of(made, (1e-3, 0.0), (1e-3, 0.0), 8192, lambda n, seconds: seconds * (times if n == 6 else 1))
    if holds:
        assert all(check.holds for check in estimated(run, made).checks)
    else:
        with pytest.raises(NoEstimateError, match="12,288 to 14,336"):
            estimated(run, made)
