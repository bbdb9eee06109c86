"""Gathered attention on a GPU: keys and values are read in place, and the queries are rotated in the kernel."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.gathered.contract import Gathered, PerQueryChunk, PerRow
from longspan.kernels.gpu import tiles
from longspan.kernels.gpu.launch import constants, merge, room, unsupported_scale
from longspan.kernels.layout import empty_output, fp32_table, unit_stride
from longspan.kernels.once import once

_SHORT = tiles.SMALLEST  # units shorter than this share a step, and no row is worth grouping by them
_UNITS_AT_ONCE = 256  # whose tiles a program schedules
FEW_ROWS = 8  # rows up to which each walks its own units
CHANNELS_AT_ONCE = 1 << 28  # channels of partial outputs held at once (bf16: 512 MB)


def unsupported_reason(job: PerRow | PerQueryChunk) -> str | None:
    """Why these kernels cannot run this job, or None."""
    if isinstance(job, PerQueryChunk) and job.key_cos_sin is not None and job.rope.norm_k is not None:
        return "the model normalises keys after it rotates them, and these are rotated as they are gathered"
    if isinstance(job, PerRow) and job.size < _SHORT and job.rope.norm_q is not None:
        return f"the model normalises queries after it rotates them, and units are shorter than {_SHORT} tokens"
    return unsupported_scale(job.scale) or tiles.unsupported_reason(job.q, job.keys, job.v)


def run(job: PerRow | PerQueryChunk) -> tuple[Tensor, Tensor]:
    """Output ``[B, H, T, Dv]`` in q's dtype and log-sum-exp ``[B, H, T]`` in fp32."""
    with tiles.on(job.q.device):
        return _by_row(job) if isinstance(job, PerRow) else _by_query_chunk(job)


def _by_row(job: PerRow) -> tuple[Tensor, Tensor]:
    out, lse = empty_output(job.q, job.v)
    rows, count = job.q.shape[2], job.units.shape[-1]
    if out.numel() == 0 or count == 0:
        return out.zero_(), lse.fill_(-torch.inf)
    few = rows <= FEW_ROWS or rows * count <= job.keys.shape[2] // job.size
    if job.size < _SHORT or few:
        _walk_units(job, out, lse)
        return out, lse
    step = max(1, CHANNELS_AT_ONCE // (out.shape[0] * out.shape[1] * count * out.shape[3]))
    for r0 in range(0, rows, step):
        part = slice(r0, min(r0 + step, rows))
        own_lse = torch.empty_like(lse[:, :, part], memory_format=torch.contiguous_format)
        _walk_rows(job.part(part), out[:, :, part], own_lse)
        lse[:, :, part] = own_lse
    return out, lse


def _walk_units(job: PerRow, out: Tensor, lse: Tensor) -> None:
    """Every row walks its units."""
    from longspan.kernels.gathered import triton_jit

    rows, count, slots = out.shape[2], job.units.shape[-1], job.size < _SHORT
    tile, columns, keys, v, shared = _laid_out(job, job.units, 1, job.size * count if slots else job.size, slots)
    steps = -(-job.size * count // tile.keys) if slots else -(-job.size // tile.keys) * count
    parts = tiles.splits(rows * columns * out.shape[0], steps, out.device)
    whole, whole_lse = room(out, lse, parts)
    q, per_unit, pairs = _rotated_per_unit(job)
    cos, sin = fp32_table(job.table)
    units, at = job.units.to(q.device).contiguous(), _positions(job)
    triton_jit.by_row[(rows * parts, columns, out.shape[0])](
        q, keys, v, units, at, cos, sin, whole, whole_lse,
        *q.stride()[:3], per_unit, *keys.stride()[:3], *v.stride()[:3], *at.stride()[:2], *whole.stride()[:3],
        rows, count, parts, float(job.scale),
        POSITIONS_SHARE=_sharing(job, job.units) // at.shape[1], SIZE=job.size, SLOTS=slots, HALF=pairs, **shared,
    )  # fmt: skip
    merge(whole, whole_lse, out, lse)


def _walk_rows(job: PerRow, out: Tensor, lse: Tensor) -> None:
    """The rows that chose a unit are gathered around it, and their parts merged afterwards."""
    from longspan.kernels.gathered import triton_jit

    batch, heads, rows, dv = out.shape
    count = job.units.shape[-1]
    tile, columns, keys, v, shared = _laid_out(job, job.units, rows * count, job.size)
    places = tile.rows // shared["TILE_HEADS"]
    order, schedule = schedule_tiles(job.units.to(out.device), job.keys.shape[2] // job.size, places)
    q, per_unit, pairs = _rotated_per_unit(job)
    cos, sin = fp32_table(job.table)
    at = _positions(job)
    parts = out.new_empty(batch, heads, rows, count, dv)
    parts_lse = lse.new_empty(batch, heads, rows, count)
    triton_jit.by_unit[(schedule.shape[2], columns, batch)](
        q, keys, v, order, schedule, at, cos, sin, parts, parts_lse,
        *q.stride()[:3], per_unit, *keys.stride()[:3], *v.stride()[:3], *at.stride()[:2],
        rows, count, float(job.scale),
        POSITIONS_SHARE=_sharing(job, job.units) // at.shape[1], SIZE=job.size, HALF=pairs, **shared,
    )  # fmt: skip
    merge(parts, parts_lse, out, lse)


def schedule_tiles(units: Tensor, available: int, places: int) -> tuple[Tensor, Tensor]:
    """The (row, choice) pairs of each tile of ``places``, without waiting for the device to say how many chose what.

    Args:
        units: ``[B, S, T, m]``, below ``available``.

    Returns:
        ``[B, S, T · m]`` int32, the pairs ``row · m + choice`` by unit; and ``[B, S, tiles, 3]`` int32, the unit of
        each tile, its first place in the order and how many it takes, 0 for the tiles that there is no use for.
    """
    from longspan.kernels.gathered import triton_jit

    chosen, order = units.flatten(2).int().sort(dim=-1)
    batch, groups, pairs = chosen.shape
    most = pairs // places + min(available, pairs)  # every unit that anyone chose has at most one tile that is not full
    schedule = torch.zeros(batch, groups, most, 3, dtype=torch.int32, device=units.device)
    at_once = min(tiles.power(available), _UNITS_AT_ONCE)
    with tiles.on(units.device):
        triton_jit.schedule[(batch * groups,)](chosen, schedule, pairs, available, most, PLACES=places, U=at_once)
    return order.int(), schedule


def _by_query_chunk(job: PerQueryChunk) -> tuple[Tensor, Tensor]:
    out, lse = empty_output(job.q, job.v)
    batch, rows, count = out.shape[0], out.shape[2], job.tokens.shape[-1]
    if out.numel() == 0 or count == 0:
        return out.zero_(), lse.fill_(-torch.inf)
    from longspan.kernels.gathered import triton_jit_chunk

    chunks, most = 1 if job.edges is None else len(job.edges) - 1, job.longest
    tile, columns, keys, v, shared = _laid_out(job, job.tokens, most, count, job.key_cos_sin is not None)
    tall = -(-most // (tile.rows // shared["TILE_HEADS"]))
    parts = tiles.splits(chunks * tall * columns * batch, -(-count // tile.keys), out.device)
    whole, whole_lse = room(out, lse, parts)
    tokens = job.tokens.to(out.device).contiguous()
    # Made there: a copy to the device waits for all that it was asked for.
    ends = job.ends if job.ends is not None else torch.full((1,) * tokens.dim(), count, device=out.device)
    ends = ends.to(out.device).expand(*tokens.shape[:-1], -1).contiguous()
    edges = tokens if job.edges is None else edges_on_device(job, job.edges)
    norm = job.rope.norm_q is not None
    if norm:
        q = torch.stack([job.rope.rotate_q(job.q, *one) for one in job.cos_sin])
        cos = sin = q
    else:
        q = unit_stride(job.q)[None].expand(len(job.cos_sin), *job.q.shape)
        cos, sin = (torch.stack([one[n].float() for one in job.cos_sin]) for n in (0, 1))
    key_cos, key_sin = fp32_table(job.key_cos_sin) if job.key_cos_sin is not None else (cos, sin)
    triton_jit_chunk.by_query_chunk[(chunks * tall * parts, columns, batch)](
        q, keys, v, tokens, ends, edges, cos, sin, key_cos, key_sin, whole, whole_lse,
        *q.stride()[:4], *keys.stride()[:3], *v.stride()[:3], *whole.stride()[:3],
        rows, count, len(job.cos_sin), chunks, tall, parts, float(job.scale), CHUNKS=job.edges is not None,
        HALF=0 if norm else cos.shape[-1], KEY_HALF=key_cos.shape[-1] if job.key_cos_sin is not None else 0, **shared,
    )  # fmt: skip
    merge(whole, whole_lse, out, lse)
    return out, lse


def edges_on_device(job: PerQueryChunk, edges: tuple[int, ...]) -> Tensor:
    """``[P + 1]`` int64 on the device of the queries, copied once for layers that share what is derived."""
    if edges[0] or edges[-1] != job.q.shape[2] or any(a >= b for a, b in pairwise(edges)):
        raise ValueError(f"the edges of chunks are not in order from 0 to {job.q.shape[2]}, the queries: {list(edges)}")
    if job.tokens.dim() != 4 or job.tokens.shape[2] != len(edges) - 1:
        raise ValueError(f"{len(edges) - 1} chunks of queries have tokens {list(job.tokens.shape)}")
    device = job.q.device

    def copy() -> Tensor:
        return torch.tensor(edges, dtype=torch.int64, device="cpu").to(device, non_blocking=True)

    return once(job.derived, ("edges", device), copy, edges)


def _sharing(job: Gathered, chosen: Tensor) -> int:
    """Groups of query heads that share both a key head and a choice."""
    return max(job.keys.shape[1], chosen.shape[1])


def _laid_out(
    job: Gathered, chosen: Tensor, rows: int, in_a_row: int, rotated: bool = False
) -> tuple[tiles.Tiles, int, Tensor, Tensor, dict[str, Any]]:
    """How programs share the work, and what they read.

    Args:
        chosen: ``[B, S, ...]``; heads that share a key head and a choice share a tile's keys.
        rows: of a head whose keys are the same.
        in_a_row: keys that lie one after the other.
        rotated: whether keys are rotated as they are loaded.

    Returns:
        Tiles, the columns of the grid, keys and values as the kernels read them, and the kernels' constants.
    """
    sharing = _sharing(job, chosen)
    group, dk, dv = job.q.shape[1] // sharing, job.q.shape[-1], job.v.shape[-1]
    tile = tiles.choose(job.q, tiles.power(dk), tiles.power(dv), rows * group)
    # Keys that are rotated as they are loaded need four loads each, of which no second set fits beside the first.
    tile = replace(tile, keys=min(tile.keys, tiles.power(in_a_row)), stages=1 if rotated else tile.stages)
    shared = constants(dk, dv, job.rope, job.softcap, tile, group)
    shared |= {"KV_SHARE": sharing // job.keys.shape[1], "CHOICE_SHARE": sharing // chosen.shape[1]}
    columns = sharing * -(-group // shared["TILE_HEADS"])
    return tile, columns, unit_stride(job.keys), unit_stride(job.v), shared


def _rotated_per_unit(job: PerRow) -> tuple[Tensor, int, int]:
    """Queries, the step from a unit's copy of one to the next unit's, and how many pairs the kernel rotates."""
    if job.rope.norm_q is None:
        return unit_stride(job.q), 0, job.table[0].shape[-1]
    # A module of the model's own comes after the rotation; the kernel takes what comes out of it.
    return job.rotated().unflatten(2, (-1, job.units.shape[-1])), job.q.shape[-1], 0


def _positions(job: PerRow) -> Tensor:
    """``[B, S, T, m]`` on the device; one for all that choose is repeated with strides of zero."""
    at = job.positions.to(job.q.device).contiguous()
    return at if at.dim() == 4 else at.expand(*job.units.shape[:2], -1, -1)
