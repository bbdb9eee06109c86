"""Scores on a GPU: keys are read in tiles, and of their scores only maxima and sums leave a program."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from longspan.kernels.gpu import tiles
from longspan.kernels.layout import unit_stride
from longspan.kernels.scores.contract import QueryChunks
from longspan.rope import Rope, cos_sin


def unsupported_reason(q: Tensor, *others: Tensor, rope: Rope | None = None) -> str | None:
    """Why these kernels cannot run on these tensors (any shape), or None."""
    if rope is not None and (rope.norm_q is not None or rope.norm_k is not None):
        return "the model normalises after it rotates, and chunks are rotated in the kernel"
    return tiles.unsupported_reason(q, *others)


def token_scores(
    q: Tensor, keys: Tensor, chunks: QueryChunks | None = None, start: int = 0, stop: Tensor | None = None
) -> Tensor:
    """``[B, S, M]`` in fp32, or ``[B, S, P, M']`` of chunks, all of which run at once.

    Of one query -inf before ``start`` and from ``stop`` ``[1]`` int64 on, if it is given.
    """
    from longspan.kernels.scores import triton_jit

    batch, heads, tokens, parts, width = q.shape
    count, many, most = keys.shape[2], 1, tokens
    if chunks is not None:
        chunks.check(tokens, count)
        count, many = max(chunks.stops, default=0), len(chunks.stops)
        most = max((b - a for a, b in pairwise(chunks.edges)), default=0)
    out = torch.empty(batch, heads, many, count, dtype=torch.float32, device=q.device)
    if out.numel() == 0:
        return out if chunks is not None else out[:, :, 0]
    q, keys, padded = unit_stride(q), unit_stride(keys), tiles.power(width)
    # Queries are loaded for each of their parts, so a stage holds them as well: a third would not fit wide heads.
    tile = tiles.choose(q, padded, padded, most)
    tile = replace(tile, stages=min(tile.stages, 2))
    grid = -(-count // tile.keys), heads, batch * many
    edges, stops = (out, out if stop is None else stop) if chunks is None else chunks.on(q.device)
    common = (edges, stops, *q.stride()[:4], *keys.stride()[:3], heads, tokens, count, many, start)
    constants = {
        "CHUNKS": chunks is not None, "STOPPED": stop is not None,
        "PARTS": parts, "KV_SHARE": 1 if parts > 1 else heads // keys.shape[1],
        "D": width, "DP": padded, "R": tile.rows, "K": tile.keys,
        "num_warps": tile.warps, "num_stages": tile.stages,
    }  # fmt: skip
    with tiles.on(q.device):
        if most == 1 and chunks is None:  # a key's only score is its largest: its distance is taken afterwards
            top = out.new_zeros(batch, heads, 1)
        else:
            tops = out.new_empty(batch, heads, tokens, grid[0])
            triton_jit.token_scores[grid](q, keys, tops, tops, *common, TOPS=True, **constants)
            top = tops.amax(dim=-1)
        triton_jit.token_scores[grid](q, keys, top, out, *common, TOPS=False, **constants)
    if chunks is not None:
        return out
    out = out[:, :, 0]
    return out.sub_(out.amax(dim=-1, keepdim=True)) if tokens == 1 else out


def representations(q: Tensor, k: Tensor, v: Tensor, rope: Rope, scale: float, order: Tensor | None) -> Tensor:
    """``[H, n, D]`` in fp32."""
    from longspan.kernels.scores import triton_jit

    heads, chunks, size, width = q.shape
    out = torch.empty(heads, chunks, width, dtype=torch.float32, device=q.device)
    if out.numel() == 0:
        return out
    cos, sin = (x.float().contiguous() for x in cos_sin(rope.table, torch.arange(size), q.device))
    # Every head of a group and every tile of queries reads the keys, and queries once.
    q, k, v = (unit_stride(x) for x in (q, rope.rotate_k(k, cos, sin), v))
    channels = out if order is None else order.to(q.device, torch.int32)
    padded = tiles.power(width)
    tile = tiles.choose(q, padded, padded, size)
    tile = replace(tile, keys=min(tile.keys, tiles.power(size)))
    with tiles.on(q.device):
        triton_jit.representations[(chunks, heads)](
            q, k, v, cos, sin, channels, out,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], chunks, float(scale),
            SIZE=size, KV_SHARE=heads // k.shape[0], ORDERED=order is not None, D=width, DP=padded,
            START=rope.start, HALF=cos.shape[-1], INTERLEAVED=rope.layout == "interleaved",
            R=tile.rows, K=tile.keys, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out
