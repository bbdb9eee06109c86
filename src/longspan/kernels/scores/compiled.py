"""Scores in C: the keys are read in place."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.kernels import cpu
from longspan.kernels.cpu import packing
from longspan.kernels.cpu.structs import ALL
from longspan.kernels.layout import fp32_table, unit_stride
from longspan.kernels.scores.contract import QueryChunks
from longspan.rope import Rope, cos_sin

_REPRESENTATIONS, _PRODUCTS, _TOKEN_SCORES = ALL["Representations"], ALL["Products"], ALL["TokenScores"]

_KEYS = 4096  # of an item of the work, if queries are few
_ROWS, _FEWEST = 96, 16  # queries whose scores are held together: at most, and for a thread of their own
_SCORES, _FEWEST_HELD = 2**24, 8  # scores that a thread holds (64 MB), with no fewer queries than these


def products_unsupported_reason(q: Tensor, keys: Tensor) -> str | None:
    """Why products cannot be computed here, or None; shapes as for ``products``."""
    if q.dtype not in cpu.KINDS or q.device.type != "cpu":
        return f"the queries are {q.dtype} on {q.device.type}"
    if keys.shape[-1] > 1 and keys.stride(-1) != 1:
        return "the keys are not contiguous in their last axis"
    if q.shape[0] != keys.shape[0] or q.shape[-1] != keys.shape[-1]:
        return f"queries are {list(q.shape)} and keys {list(keys.shape)}"
    if torch.is_grad_enabled() and q.requires_grad:
        return "it does not support gradients"
    return cpu.unsupported_reason(keys, keys)


def token_scores_unsupported_reason(q: Tensor, keys: Tensor) -> str | None:
    """Why token scores cannot be computed here, or None; shapes as for ``token_scores``."""
    if not 1 <= q.shape[3] <= keys.shape[1]:
        return f"queries are in {q.shape[3]} parts and keys in {keys.shape[1]}"
    if q.shape[3] == 1 and q.shape[1] % keys.shape[1]:
        return f"{q.shape[1]} heads are not spread over {keys.shape[1]} key heads"
    return products_unsupported_reason(q, keys)


def representations_unsupported_reason(q: Tensor, k: Tensor, v: Tensor, rope: Rope) -> str | None:
    """Why representations cannot be computed here, or None; shapes as for ``representations``."""
    if rope.norm_q is not None or rope.norm_k is not None:
        return "the model normalises after it rotates, and chunks are rotated in the kernel"
    if v.shape[-1] != k.shape[-1]:
        return "keys and values are not equally wide"
    return cpu.unsupported_reason(q, k, v)


def representations(q: Tensor, k: Tensor, v: Tensor, rope: Rope, scale: float, order: Tensor | None) -> Tensor:
    """``[H, n, D]`` in fp32."""
    q, k, v = (unit_stride(x).transpose(0, 1) for x in (q, k, v))  # [n, H, l, D]: a batch of chunks
    chunks, heads, size, width = q.shape
    out = torch.empty(heads, chunks, width, dtype=torch.float32, device="cpu")
    channels = torch.arange(width, device="cpu") if order is None else order.cpu().contiguous()
    tokens = cpu.tile_tokens(heads, k.shape[1])
    table = fp32_table(cos_sin(rope.table, torch.arange(size, device="cpu"), q.device))
    packing.expect("order", channels, width, dtype=torch.int64, contiguous=True)
    packed = _REPRESENTATIONS.pack(
        job=packing.job(q, v, None, None, rope, scale, None, k.shape[1], False),
        keys=packing.keys(k, q, v),
        table=packing.table(table, rope),
        order=channels.data_ptr(),
        out=out.data_ptr(),
        chunks=chunks,
        tokens=tokens,
    )
    cpu.run("representations", chunks * k.shape[1], packed)
    return out


def products(q: Tensor, keys: Tensor) -> Tensor:
    """Of ``[B, H, T, D]`` and ``[B, H, M, D]``: ``[B, H, T, M]`` in fp32."""
    batch, heads, rows, width = q.shape
    q, count = q.float().contiguous(), keys.shape[2]
    out = torch.empty(batch, heads, rows, count, dtype=torch.float32, device="cpu")
    packing.expect("keys", keys, batch, heads, None, width)
    packing.whole_lanes(width)
    packed = _PRODUCTS.pack(
        q=q.data_ptr(),
        keys=keys.data_ptr(),
        out=out.data_ptr(),
        step=keys.stride()[:3],
        heads=heads,
        rows=rows,
        width=width,
        count=count,
        kind=cpu.KINDS[keys.dtype],
        each=_KEYS,
    )
    cpu.run("products", batch * heads * -(-count // _KEYS), packed, out.numel() * width)
    return out


def token_scores(q: Tensor, keys: Tensor, chunks: QueryChunks | None) -> Tensor:
    """``F`` of ``[B, S, T, C, D]`` and ``[B, Hkv, M, D]``: ``[B, S, M]`` in fp32, or ``[B, S, P, M']`` of chunks."""
    batch, heads, rows, parts, width = q.shape
    if chunks is None:  # tiles of the queries are chunks that meet the same keys, so that threads share them
        shares = min(-(-torch.get_num_threads() // max(batch * heads, 1)), rows // _FEWEST)
        tile = min(_ROWS, -(-rows // shares)) if shares > 1 else _ROWS
        edges, stops = [*range(0, rows, tile), rows], [keys.shape[2]] * -(-rows // tile)
    else:
        edges, stops = list(chunks.edges), list(chunks.stops)
        tile = min(_ROWS, max(_FEWEST_HELD, _SCORES // max(1, *stops)))
    out = torch.empty(batch, heads, len(stops), max(stops, default=0), dtype=torch.float32, device="cpu")
    q = q.float().contiguous()
    first, ends = (torch.tensor(x, dtype=torch.int64, device="cpu") for x in (edges, stops))
    if (reason := token_scores_unsupported_reason(q, keys)) is not None:
        raise ValueError(reason)
    packing.expect("keys", keys, batch, None, None, width)
    if out.shape[3] > keys.shape[2]:
        raise ValueError(f"there are {keys.shape[2]} keys and not {out.shape[3]}")
    packed = _TOKEN_SCORES.pack(
        q=q.data_ptr(),
        keys=keys.data_ptr(),
        out=out.data_ptr(),
        edges=first.data_ptr(),
        stops=ends.data_ptr(),
        step=keys.stride()[:3],
        sharing=heads,
        rows=rows,
        chunks=len(stops),
        parts=parts,
        width=width,
        kv_heads=keys.shape[1],
        count=out.shape[3],
        tile=tile,
        kind=cpu.KINDS[keys.dtype],
    )
    if out.numel():
        cpu.run("token_scores", batch * heads * len(stops), packed)
    if chunks is not None:
        return out
    return out[:, :, 0] if len(stops) == 1 else out.amax(dim=2)
