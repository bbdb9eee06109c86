"""A plan's rectangles are exactly its rows' key ranges."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.bands import Interval
from longspan.kernels.banded import make_plan, plan
from support.cases import all_cases


@dataclass
class _Band:
    keys: Interval

    def q_pos(self, i):
        return i


def expand(made):
    """``[bands, T, N]``: how often each query sees each key, by the blocks."""
    rows, keys = made.stop - made.start, made.stop
    seen = torch.zeros(len(made.bands), rows, keys, dtype=torch.int64)
    at = 0
    for block in made.blocks:
        assert block.r0 == at < block.r1, "blocks tile the rows in order"
        at = block.r1
        t = torch.arange(block.r1 - block.r0)[:, None]
        for span in block.spans:
            assert 0 <= span.k0 < span.k1 <= made.stop
            j = torch.arange(span.k1 - span.k0)[None, :]
            if span.shape == "full":
                inside = torch.ones(len(t), j.shape[1], dtype=torch.bool)
            elif span.shape == "causal":
                assert len(t) == j.shape[1]
                inside = j <= t
            else:
                inside = (j >= span.lo_slope * t) & (j < span.first + span.hi_slope * t)
            assert inside.any(dim=1).all(), "a row without a key has no log-sum-exp"
            seen[span.band, block.r0 : block.r1, span.k0 : span.k1] += inside
    assert at == rows
    return seen


def check(bands, start, stop):
    made = make_plan(bands, start, stop)
    i, j = torch.arange(start, stop)[:, None], torch.arange(stop)[None, :]
    wanted = [(j >= b.keys.lo(i)) & (j < b.keys.hi(i)) & (j <= i) for b in bands]
    assert made.bands == tuple(n for n, w in enumerate(wanted) if w.any())
    for n, lo, hi, rows in zip(made.bands, made.lo, made.hi, expand(made), strict=True):
        assert torch.equal((j >= lo[:, None]) & (j < hi[:, None]), wanted[n])
        assert torch.equal(rows, wanted[n].long())


N = 40
border = st.one_of(
    st.tuples(st.just("line"), st.integers(0, 1), st.integers(-N, N)),
    st.tuples(st.just("steps"), st.integers(1, 9), st.integers(-N, N)),
    st.tuples(st.just("any"), st.lists(st.integers(-3, N + 3), min_size=N, max_size=N)),
)


def index_map(kind, *args):
    if kind == "line":
        return lambda i: (i * args[0] + args[1]).clamp(min=0)
    if kind == "steps":
        return lambda i: (i // args[0] * args[0] + args[1]).clamp(min=0)
    return lambda i: torch.tensor(args[0])[i]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(border, border), min_size=1, max_size=3), st.integers(0, N - 1), st.integers(1, N), st.data())
def test_blocks_expand_to_the_ranges(borders, start, count, data):
    stop = min(start + count, N)
    tile = data.draw(st.sampled_from((1, 3, 512)))
    saved, plan.TILE = plan.TILE, tile
    try:
        check([_Band(Interval(index_map(*lo), index_map(*hi))) for lo, hi in borders], start, stop)
    finally:
        plan.TILE = saved


def bands_of(case, start, stop):
    return case.method.bands(case.window, start, stop)


@pytest.mark.parametrize("case", all_cases(windows=(24, 7)))
def test_plans_of_methods(case):
    n = 5 * case.window
    for start, stop in ((0, n), (0, 1), (n - 1, n), (case.window - 2, n - 5), (3, 4)):
        check(bands_of(case, start, stop), start, stop)


@pytest.mark.parametrize("case", all_cases())
def test_a_decoding_step_has_one_full_span_a_range(case):
    made = make_plan(bands_of(case, 99, 100), 99, 100)
    (block,) = made.blocks
    assert all(span.shape == "full" for span in block.spans)
    assert len(block.spans) == len(made.bands)
