"""Figures as they are written."""

from __future__ import annotations

import math

import pytest

from longspan_eval.figure import Figure, wilson

NAN = math.nan


def test_wilson_is_the_published_interval():
    # Brown, Cai and DasGupta (2001) state the form; these are its values at 95%.
    assert wilson(5, 5) == pytest.approx((0.5655, 1.0), abs=1e-4)
    assert wilson(0, 5) == pytest.approx((0.0, 0.4345), abs=1e-4)
    assert wilson(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("figure", "shown"),
    [
        (Figure(0.625, "score", 2, (0.31, 0.86)), "62.5 (31.0-86.0) n=2"),
        (Figure(0.5, "share", 4, (0.15, 0.85)), "50% (15-85) n=4"),
        (Figure(0.0625, "share"), "6.25%"),
        (Figure(0.394, "share"), "39.4%"),
        (Figure(0.394, "share", 3, (0.3, 0.5)), "39% (30-50) n=3"),
        (Figure(0.98, "count", 200, (0.95, 0.99)), "196/200 (95-99)"),
        (Figure(12.345, "perplexity", 1), "12.35 n=1"),
        (Figure(227.4, "perplexity", 2, (200.0, 250.0)), "227.4 (200.0-250.0) n=2"),
        (Figure(3561.4, "perplexity"), "3,561"),
        (Figure(2.1e7, "perplexity"), "2.1e+07"),
        (Figure(math.inf, "perplexity", 1), "inf n=1"),
        (Figure(1.013, "ratio", 120, (1.009, 1.017), baseline=25.9), "26.2 (+1.3% ± 0.4)"),
        (Figure(26.0, "ratio", 120, (1.0, 40.0), baseline=25.9), "673 (x26.0)"),
        (Figure(2.0, "ratio", 9, (1.9, 2.1), baseline=1.0002), "2.00 (x2.0)"),
        (Figure(1.5, "ratio", 1, (0.0, math.inf), baseline=0.8), "1.200 (+50.0%)"),
        (Figure(4736.0, "ratio", 1, (0.0, math.inf), baseline=26.06), "123k (x4.7k)"),
        (Figure(math.inf, "ratio", 1, (1.0, math.inf), baseline=26.0), ">1M (x>1M)"),
        (Figure(0.0123, "seconds", 2), "12.3 ms"),
        (Figure(4.14, "seconds", 2), "4.14 s"),
        (Figure(42.3e9, "bytes", 2), "42.3 GB"),
        (Figure(1500.0, "bytes"), "1.5 kB"),
        (Figure(999.0, "bytes"), "999 B"),
        (Figure(0.295, "number", 2), "0.295"),
        (Figure(1535.0, "number"), "1,535"),
        (Figure(0.25, "number", 2, (0.25, 0.25)), "0.25 (0.25-0.25) n=2"),
        (Figure(NAN, "text", text="a / b"), "a / b"),
        (Figure(NAN, "number", 2), "-"),
        (Figure(NAN, "share", planned=3), "·"),
        (Figure(0.5, "share", 1, (0.0, 1.0), measured=1, planned=3), "50% (0-100) n=1 …"),
        (Figure(NAN, "share", reason="out of memory"), "out of memory"),
        (Figure(NAN, "share", reason="skipped: a prompt takes long", planned=3), "skipped"),
        (Figure(NAN, "share", reason="DCA: a rule is broken"), "error"),
        (Figure(NAN, "share", reason="put it there", brief="needs `f.jsonl`"), "needs `f.jsonl`"),
    ],
)
def test_written(figure, shown):
    assert str(figure) == shown
    assert figure.mark == (shown if math.isnan(figure.value) and not figure.text else None)
