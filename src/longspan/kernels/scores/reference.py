"""The contracts of scores, one equation a line and in fp64."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.rope import Rope, cos_sin


def products(q: Tensor, keys: Tensor) -> Tensor:
    """``[B, H, T, M]`` of ``[B, H, T, D]`` and ``[B, H or 1, M, D]``, in fp64."""
    return q.double() @ keys.double().mT


def token_scores(q: Tensor, keys: Tensor) -> Tensor:
    """Eq 4 of ``[B, S, T, C, D]`` and ``[B, Hkv, M, D]``: ``[B, S, M]`` in fp64."""
    q, keys = q.double(), keys.double()
    heads, parts = q.shape[1], q.shape[3]
    f = torch.stack(
        [
            sum((q[:, s, :, c] @ keys[:, c if parts > 1 else s * keys.shape[1] // heads].mT for c in range(parts)),
                start=q.new_zeros(()))
            for s in range(heads)
        ],
        dim=1,
    )  # [B, S, T, M]  # fmt: skip
    return (f - f.amax(dim=-1, keepdim=True)).amax(dim=2)


def representations(q: Tensor, k: Tensor, v: Tensor, rope: Rope, scale: float, order: Tensor | None) -> Tensor:
    """Eqs 1 and 2 of ``[H, n, l, D]`` and ``[Hkv, n, l, D]``, a chunk and a head at a time: ``[H, n, D]`` in fp64."""
    heads, chunks, size, width = q.shape
    group = heads // k.shape[0]
    cos, sin = (x.double() for x in cos_sin(rope.table, torch.arange(size), q.device))
    q, k, v = rope.rotate_q(q.double(), cos, sin), rope.rotate_k(k.double(), cos, sin), v.double()
    v = v if order is None else v[..., order.to(v.device)]
    out = q.new_empty(heads, chunks, width)
    for h in range(heads):
        for n in range(chunks):
            keys, values = k[h // group, n], v[h // group, n]
            chunk_query = ((q[h, n] @ keys.mT * scale).softmax(dim=-1) @ values).mean(dim=0)
            out[h, n] = (chunk_query @ keys.mT * scale).softmax(dim=-1) @ keys
    return out
