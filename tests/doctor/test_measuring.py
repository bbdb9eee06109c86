"""Two lengths that were measured, as a line to the one that is asked for."""

from __future__ import annotations

from itertools import pairwise

import pytest

from longspan.doctor.measuring import PREFILL_CHUNK, Line, Point, Run, ladder, line, lines


def test_a_line_goes_through_both_points():
    found = line((100, 3.0), (200, 5.0))
    assert (found.start, found.slope) == pytest.approx((1.0, 0.02)) and found.at(1000) == pytest.approx(21.0)


@pytest.mark.parametrize(
    ("near", "far", "expected"),
    [
        ((100, 5.0), (200, 3.0), (3.0, 0.0)),
        ((100, 1.0), (200, 5.0), (0.0, 0.025)),
        ((100, 2.0), (100, 2.0), (2.0, 0.0)),
    ],
)
def test_a_line_is_never_negative(near, far, expected):
    found = line(near, far)
    assert (found.start, found.slope) == pytest.approx(expected) and found.at(far[0]) == pytest.approx(far[1])


def test_growth_is_what_most_of_the_time_is():
    assert Line(1.0, 0.01).growth(99) == "linear" and Line(1.0, 0.01).growth(101) == "quadratic"
    assert Line(1.0, 0.0).growth(10**9) == "linear"


@pytest.mark.parametrize(("start", "slope"), [(1e-4, 0.0), (1e-4, 1e-8), (0.0, 1e-8)])
@pytest.mark.parametrize("length", [100, 500, 8192])
def test_a_run_that_takes_what_a_line_says_is_told_so(start, slope, length):
    chunks = tuple(Point(a, b, b * (start + slope * b) - a * (start + slope * a)) for a, b in ladder(length))
    tokens = tuple(Point(b, b + 16, start + slope * b) for _, b in ladder(length))
    for found in lines(Run("cpu", chunks, tokens, 2, 1.0)):
        known = length if len(chunks) == 1 else 64 * length  # one length shows no growth
        assert found.at(known) == pytest.approx(start + slope * known)


def test_a_ladder_is_whole():
    for length in (1, 128, 129, 5000):
        steps = ladder(length)
        assert steps[0][0] == 0 and steps[-1][1] == length and all(b - a <= PREFILL_CHUNK for a, b in steps)
        assert all(a == b for (_, a), (b, _) in pairwise(steps))
