"""Attention computed directly from ``keep`` and ``rel``."""

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
        q: ``[B, H, T, D]``, unrotated; any dtype, promoted to fp64.
        k: ``[B, Hkv, N, D]``, unrotated; any dtype, promoted to fp64.
        v: ``[B, Hkv, N, Dv]``; any dtype, promoted to fp64.
        keep, rel: ``[T, N]``, or ``[B, H, T, N]``, bool and int64.
        rope: the rotation at this text length, without a normalisation after it.
        scale: the factor on every score.
        query_factor: the factor on the rotated part of every score.
        softcap: ``c`` in ``c · tanh(score / c)``.
        sinks: ``[H]`` logits that enter the softmax without a value.

    Returns:
        ``[B, H, T, Dv]`` in fp64.
    """
    v = v.double().repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    scores = dots(q, k, rel, rope, query_factor)
    scores = scores * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~keep, float("-inf"))
    if sinks is not None:
        column = sinks.double()[None, :, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(dim=-1)[..., : v.shape[-2]]
    return weights @ v


def dots(q: Tensor, k: Tensor, rel: Tensor, rope: Rope, query_factor: float = 1.0) -> Tensor:
    """``q_i · R(-rel(i, j)) k_j``: ``[B, H, T, N]`` in fp64; arguments as for ``oracle``.

    Raises:
        ValueError: the layer normalises queries or keys after their rotation.
    """
    if rope.norm_q is not None or rope.norm_k is not None:
        raise ValueError("the oracle does not support normalisation after the rotation")
    heads = q.shape[1]
    q, k = q.double(), k.double().repeat_interleave(heads // k.shape[1], dim=1)
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
    return scores
