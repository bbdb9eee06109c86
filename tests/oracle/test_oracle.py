"""The fp64 oracle against the same equations written otherwise, and against torch's own attention."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from longspan.oracle import oracle
from longspan.oracle.attention import dots
from support.cases import make_qkv

N, SCALE = 23, 0.3


def text():
    q, k, v = make_qkv(N, batch=2, kv_heads=2)
    i, j = torch.arange(N)[:, None], torch.arange(N)[None]
    return (q.double(), k.double(), v.double()), j <= i, i - j


def turned(x, positions, rope):
    """``x`` rotated as complex numbers, its rotated channels in pairs; positions ``[T]``."""
    first, end = rope.start, rope.start + rope.rotated
    part = x[..., first:end]
    a, b = part.chunk(2, dim=-1) if rope.layout == "half" else (part[..., ::2], part[..., 1::2])
    phase = positions.double()[:, None] * rope.table.inv_freq.double()
    c = torch.complex(a, b) * torch.polar(torch.full_like(phase, rope.table.factor), phase)
    pair = (c.real, c.imag)
    found = torch.cat(pair, dim=-1) if rope.layout == "half" else torch.stack(pair, dim=-1).flatten(-2)
    return torch.cat((x[..., :first], found, x[..., end:]), dim=-1)


def test_true_distances_are_plain_attention(any_rope):
    (q, k, v), keep, rel = text()
    at = torch.arange(N)
    plain = scaled_dot_product_attention(
        turned(q, at, any_rope), turned(k, at, any_rope), v, is_causal=True, scale=SCALE, enable_gqa=True
    )
    assert (oracle(q, k, v, keep, rel, any_rope, scale=SCALE) - plain).abs().max() < 1e-12


def test_a_logit_depends_on_the_distance_alone(any_rope):
    """``q_i · R(-rel) k_j`` is what the query rotated by ``rel`` and the key left at 0 give, whatever i and j are."""
    (q, k, _), _, _ = text()
    rel = torch.randint(0, 500, (N, N), generator=torch.Generator().manual_seed(3))
    found = dots(q, k, rel, any_rope)
    still = turned(k, torch.zeros(N), any_rope).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    for i in range(0, N, 5):
        each = turned(q[:, :, i : i + 1].expand(-1, -1, N, -1), rel[i], any_rope)
        assert (found[:, :, i] - (each * still).sum(dim=-1)).abs().max() < 1e-12


def test_softcap_and_sinks(rope):
    (q, k, v), keep, rel = text()
    sinks = torch.tensor([0.5, -1.0, 2.0, 4.0])
    scores = 3.0 * torch.tanh(SCALE * dots(q, k, rel, rope) / 3.0)
    weights = scores.exp() * keep
    total = weights.sum(dim=-1, keepdim=True) + sinks.double().exp()[None, :, None, None]
    plain = weights / total @ v.repeat_interleave(2, dim=1)
    found = oracle(q, k, v, keep, rel, rope, scale=SCALE, softcap=3.0, sinks=sinks)
    assert (found - plain).abs().max() < 1e-12


def test_one_kept_key_is_its_value(rope):
    (q, k, v), _, rel = text()
    kept = torch.arange(N) // 2
    keep = torch.zeros(N, N, dtype=torch.bool).scatter_(1, kept[:, None], True)
    found = oracle(q, k, v, keep, rel, rope, scale=SCALE)
    assert torch.equal(found, v.repeat_interleave(2, dim=1)[:, :, kept])


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_query_factor_is_on_the_rotated_part(any_rope, factor):
    (q, k, _), _, rel = text()
    whole, more = dots(q, k, rel, any_rope), dots(q, k, rel, any_rope, factor)
    first, end = any_rope.start, any_rope.start + any_rope.rotated
    still = k.repeat_interleave(2, dim=1)
    bare = q[..., :first] @ still[..., :first].mT + q[..., end:] @ still[..., end:].mT
    assert (more - bare - factor * (whole - bare)).abs().max() < 1e-12
