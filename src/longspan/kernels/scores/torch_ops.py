"""Scores in torch's own operations."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.dtypes import accumulator, widen
from longspan.kernels import softmax
from longspan.rope import Rope, cos_sin

_NOT_WIDENED = 4  # query rows below which a product only reads keys, in whatever dtype
_BLOCK = 2048  # keys widened at a time


def products(q: Tensor, keys: Tensor, block: int = _BLOCK) -> Tensor:
    """``[..., T, M]`` in the ``accumulator``, of ``[..., T, D]`` and ``[..., M, D]``.

    On a CPU operands of reduced dtypes are widened first, ``block`` keys at a time: torch multiplies those five to
    eight times slower there.
    """
    wide, rows = accumulator(q), q.shape[-2]
    keys = keys if q.dtype == keys.dtype else widen(keys)
    if q.dtype == wide or q.device.type != "cpu" or rows < _NOT_WIDENED:
        return softmax.products(q, keys)
    q, parts = q.to(wide), keys.split(block, dim=-2)  # a block stays in the processor's cache
    return torch.cat([q @ part.to(wide).mT for part in parts], dim=-1)


def relative_scores(scores: Tensor) -> Tensor:
    """``F`` ``[B, S, M]`` of scores ``[B, S, T, M]``, which are written over."""
    scores.sub_(scores.amax(dim=-1, keepdim=True))
    return scores[..., 0, :] if scores.shape[-2] == 1 else scores.amax(dim=-2)


def representations(q: Tensor, k: Tensor, v: Tensor, rope: Rope, scale: float, order: Tensor | None) -> Tensor:
    """``[H, n, D]`` in q's dtype, of ``[H, n, l, D]`` and ``[Hkv, n, l, D]``."""
    heads, chunks, size, width = q.shape
    cos, sin = cos_sin(rope.table, torch.arange(size), q.device)
    q, k, v = rope.rotate_q(q.transpose(0, 1), cos, sin), rope.rotate_k(k.transpose(0, 1), cos, sin), v.transpose(0, 1)
    folded = q.reshape(chunks, k.shape[1], -1, width)  # a group's heads as rows of its key head
    out = torch.nn.functional.scaled_dot_product_attention(folded, k, v, scale=scale)
    chunk_query = out.unflatten(2, (-1, size)).mean(dim=3)  # [n, Hkv, H / Hkv, D]
    if order is not None:
        chunk_query = chunk_query.index_select(-1, order.to(chunk_query.device))
    weights = (softmax.products(chunk_query, k) * scale).softmax(dim=-1).to(q.dtype)
    return (weights @ k).reshape(chunks, heads, width).transpose(0, 1)
