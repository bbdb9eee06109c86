"""Bands tile the kept pairs, each exactly once and at its own relative position."""

from __future__ import annotations

import pytest
import torch

from longspan.bands import Grouped, Index, Modulo, Origin
from longspan.methods import METHODS
from support.cases import all_cases, build
from support.variants import VARIANTS


@pytest.mark.parametrize("case", all_cases(windows=(24, 5, 7, 33, 64), selecting=False))
def test_bands_tile_the_kept_pairs(case):
    n = 5 * case.window + 3
    keep, rel = case.dense(n)
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    times = torch.zeros(n, n, dtype=torch.int64)
    for band in case.method.bands(case.window):
        inside = (j >= band.keys.lo(i)) & (j < band.keys.hi(i)) & (j <= i)
        times += inside
        distance = band.q_pos(i) - band.k_pos(j)
        wrong = inside & (distance != rel)
        assert not wrong.any(), (band.name, wrong.nonzero()[0].tolist())
        # A query without a key in the band may have any position, but never one that a table of angles refuses.
        assert (band.q_pos(i) >= 0).all() and (band.k_pos(j) >= 0).all()
    assert torch.equal(times, keep.long()), (times != keep).nonzero()[0].tolist()


@pytest.mark.parametrize("case", all_cases(windows=(24, 7, 64), selecting=False))
def test_every_query_keeps_itself_and_nothing_later(case):
    keep, rel = case.dense(4 * case.window)
    assert keep.diagonal().all() and not keep.triu(1).any()
    assert (rel.diagonal() == 0).all() and (rel[keep] >= 0).all()


def test_variants_belong_to_methods():
    assert set(VARIANTS) <= set(METHODS)


def test_maps_that_bound_distances_stay_inside_the_window():
    for name in ("dca", "rerope", "self-extend", "streaming-llm"):
        for options in ({}, *VARIANTS[name]):
            case = build(name, options)
            n = (options.get("target_length", 4 * case.window)) if "group" not in options else case.window
            keep, rel = case.dense(n)
            assert rel[keep].max() <= case.window - 1, (name, options)


def test_key_maps_compare_by_value():
    assert Modulo(3) == Modulo(3) != Modulo(4)
    assert len({Index(), Index(), Origin(), Grouped(2), Grouped(2), Modulo(2)}) == 4
