"""What holds for every selection that chooses: its choices equal the oracle's, and they tile what is kept."""

from __future__ import annotations

import torch

from longspan.calibration import Calibration, Projection
from support.cases import HEAD, make_qkv, recorded

N = 83
SCALE = HEAD**-0.5


def assert_oracle_chooses(case, kv_heads, rope):
    """Recorded choices equal those that the oracle states, query by query."""
    q, k, v = make_qkv(N, batch=2, kv_heads=kv_heads)
    chosen = recorded(case, "auto", q, k, v, rope, scale=SCALE)
    assert torch.equal(chosen, case.stated(q, k, v, case.rope(rope, N), SCALE))


def assert_tiles(case, rope):
    """Known bands cover exactly what is kept without being chosen, at its distance, and never what can be chosen."""
    q, k, v = make_qkv(N)
    chosen = recorded(case, "auto", q, k, v, rope, scale=SCALE)
    keep, rel = case.laid(chosen)
    i, j = torch.arange(N)[:, None], torch.arange(N)[None, :]
    times = chosen.long()
    for band in case.method.bands(case.window, 0, N):
        inside = (j >= band.keys.lo(i)) & (j < band.keys.hi(i)) & (j <= i)
        times = times + inside
        assert (band.q_pos(i) >= 0).all()
        distance = (band.q_pos(i) - band.k_pos(j)).expand_as(rel)
        assert torch.equal(distance[inside.expand_as(rel)], rel[inside.expand_as(rel)]), band.name
    assert torch.equal(times, keep.long())


def calibration(size, channels, kv_heads):
    g = torch.Generator().manual_seed(3)
    layer, heads = ((size, channels), (kv_heads, size, channels // kv_heads))
    maps = [Projection(torch.randn(shape, generator=g), torch.randn(shape, generator=g)) for shape in (layer, heads)]
    facts = {"solver": "closed_form", "model_id": "none", "weights_sha256": "0" * 64, "dtype": "float32"}
    return Calibration({0: maps[0]}, {0: maps[1]}, reduced=size, reduced_per_head=size, window=24, tokens=1, **facts)
