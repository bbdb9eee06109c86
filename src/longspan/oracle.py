"""The methods in fp64, straight from ``keep`` and ``rel``: dense, slow, and without any band. Used by tests alone."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.rope import Rope


def oracle(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor,
    rel: Tensor,
    rope: Rope,
    *,
    scale: float,
    query_factor: float = 1.0,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """``softmax(scale · q_i · R(-rel(i, j)) k_j)`` over the kept keys, times V.

    Args:
        q: ``[B, H, T, D]`` unrotated; k, v: ``[B, Hkv, N, D]``; any dtype, promoted to fp64.
        keep, rel: ``[T, N]`` bool and int64.
        rope: the angles at this total length; must not normalise after the rotation.
        query_factor: multiplies the rotated part of every score.
        softcap: ``c`` in ``c · tanh(score / c)``.
        sinks: ``[H]`` logits that take part in the softmax and carry no value.

    Returns:
        ``[B, H, T, Dv]`` fp64.
    """
    if rope.norm_q is not None or rope.norm_k is not None:
        raise ValueError("the oracle knows no normalisation after the rotation")
    heads = q.shape[1]
    q, v = q.double(), v.double().repeat_interleave(heads // v.shape[1], dim=1)
    k = k.double().repeat_interleave(heads // k.shape[1], dim=1)
    end = rope.start + rope.rotated
    scores = q[..., : rope.start] @ k[..., : rope.start].mT + q[..., end:] @ k[..., end:].mT
    if rope.layout == "half":
        a, b = q[..., rope.start : end].chunk(2, dim=-1)
        c, d = k[..., rope.start : end].chunk(2, dim=-1)
    else:
        a, b = q[..., rope.start : end : 2], q[..., rope.start + 1 : end : 2]
        c, d = k[..., rope.start : end : 2], k[..., rope.start + 1 : end : 2]
    gain = rope.table.factor**2 * query_factor
    for f, freq in enumerate(rope.table.inv_freq.double()):
        phase = rel.double() * freq
        even = a[..., f, None] * c[..., None, :, f] + b[..., f, None] * d[..., None, :, f]
        odd = a[..., f, None] * d[..., None, :, f] - b[..., f, None] * c[..., None, :, f]
        scores = scores + gain * (phase.cos() * even + phase.sin() * odd)
    scores = scores * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~keep, float("-inf"))
    if sinks is not None:
        column = sinks.double()[None, :, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(dim=-1)[..., : v.shape[-2]]
    return weights @ v
