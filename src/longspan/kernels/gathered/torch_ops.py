"""Gathered attention in torch's own operations: flash attention on a CPU, matrix products anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from longspan.dtypes import accumulator
from longspan.kernels.gathered.contract import Gathered, Part, PerQueryChunk, PerRow
from longspan.kernels.layout import unit_stride
from longspan.kernels.softmax import bounded, merged, products

_GATHERED_BY_ROW = 8  # rows up to which every row gathers its own units; beyond, rows are gathered by unit
_BUDGET = 1 << 22  # rotated queries held at once, in channels (fp32: 16 MB); more leave the cache, fewer fill no tile


class _Room:
    """Memory that is used again: on a CPU, new memory costs more than the work on it."""

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}

    def __call__(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """Uninitialised memory of that shape, in the dtype and on the device of ``like``."""
        memory, size = self._memory.get(name), math.prod(shape)
        if memory is None or memory.numel() < size:
            memory = self._memory[name] = like.new_empty(size)
        return memory[:size].view(shape)


def run(job: PerRow | PerQueryChunk, flash: bool) -> Iterator[Part]:
    """Some rows of the job at a time: their output and log-sum-exp.

    By matrix products, or by flash attention if rows that see the same units come together.
    """
    if isinstance(job, PerRow):
        return by_row(job, flash)
    return ((rows, *by_query_chunk(chunk, flash)) for rows, chunk in job.chunks())


def by_row(job: PerRow, flash: bool) -> Iterator[Part]:
    """Some rows of the job at a time: their output and log-sum-exp, in memory that the next ones use again."""
    q, count = job.q, job.units.shape[-1]
    batch, heads, rows, width = q.shape
    kv_heads = job.keys.shape[1]
    if job.units.shape[1] < kv_heads:
        job = replace(job, units=job.units.expand(-1, kv_heads, -1, -1))
    if job.size == 1 or rows <= _GATHERED_BY_ROW or rows * count <= job.keys.shape[2] // job.size:
        run = _gather_rows
    else:
        run = _group_rows
    gathered_heads = heads // kv_heads if run is _group_rows else heads
    step, room = max(1, _BUDGET // max(count * width * gathered_heads, 1)), _Room()
    wide = q.new_empty(0, dtype=accumulator(q))
    for r0 in range(0, rows, step):
        r1 = min(r0 + step, rows)
        # In memory tokens come before heads, as their parts are made and as what they are merged into lies.
        out = room("part", q, batch, r1 - r0, heads, job.v.shape[-1]).transpose(1, 2)
        lse = room("part's lse", wide, batch, heads, r1 - r0)
        part = slice(r0, r1)
        run(job.part(part), flash, room, out, lse)
        yield part, out, lse


def by_query_chunk(job: PerQueryChunk, flash: bool) -> tuple[Tensor, Tensor]:
    """Output ``[B, H, T, Dv]`` in q's dtype and log-sum-exp ``[B, H, T]`` of one chunk."""
    q, batch, rows = job.q, job.q.shape[0], job.q.shape[2]
    sharing = max(job.keys.shape[1], job.tokens.shape[1])
    group = q.shape[1] // sharing
    rotated = [job.rope.rotate_q(q, *cos_sin).unflatten(1, (sharing, group)) for cos_sin in job.cos_sin]
    tokens = job.tokens.to(job.keys.device)
    ends = job.ends.tolist() if job.ends is not None else None
    buffers = [x.new_empty(tokens.shape[2], x.shape[3]) for x in (job.keys, job.v)]  # one for all heads, see _Room
    out = q.new_empty(batch, sharing, group, rows, job.v.shape[-1])
    lse = torch.empty(out.shape[:-1], dtype=accumulator(q), device=q.device)
    for b, s in product(range(batch), range(sharing)):
        choice = s * tokens.shape[1] // sharing
        for x, buffer in zip((job.keys, job.v), buffers, strict=True):
            torch.index_select(x[b, s * x.shape[1] // sharing], 0, tokens[b, choice], out=buffer)
        keys, v = (x[None, None] for x in buffers)
        if job.key_cos_sin is not None:
            keys = job.rope.rotate_k(keys, *job.key_cos_sin)
        edges = [0, *ends[b][choice]] if ends is not None else [0, tokens.shape[2]]
        parts = [  # a group's heads are rows of their key head
            _attend(job, own[b, s].reshape(1, 1, -1, q.shape[3]), keys[:, :, a:z], v[:, :, a:z], flash)
            for own, a, z in zip(rotated, edges[:-1], edges[1:], strict=True)
            if a < z
        ]
        whole, whole_lse = merged(*zip(*parts, strict=True))
        out[b, s], lse[b, s] = whole.view(group, rows, -1), whole_lse.view(group, rows)
    return out.flatten(1, 2), lse.flatten(1, 2)


def _gather_rows(job: PerRow, flash: bool, room: _Room, out: Tensor, lse: Tensor) -> None:
    """Each row's units are copied, and its heads see all of them at once: matrix products, under ``flash`` as well."""
    q, keys, v, size, wide = job.q, job.keys, job.v, job.size, accumulator(job.q)
    rows, sharing, count = q.shape[2], job.units.shape[1], job.units.shape[-1]
    # Products of single keys are no matrix products, and slow in reduced dtypes.
    rotated = job.rotated().unflatten(2, (rows, count)).unflatten(1, (sharing, -1))  # [B, S, G, T, m, D]
    rotated = rotated.to(wide) if size == 1 else rotated
    units = job.units.to(keys.device)
    out, lse = out.unflatten(1, (sharing, -1)), lse.unflatten(1, (sharing, -1))
    for b, s in product(range(q.shape[0]), range(sharing)):
        head, unit_ids, own = s * keys.shape[1] // sharing, units[b, s].flatten(), []
        for name, x in (("keys", keys), ("values", v)):
            whole = x[b, head, : x.shape[2] // size * size].unflatten(0, (-1, size)).flatten(1)
            gathered = room(name, x, rows * count, whole.shape[1])
            torch.index_select(whole, 0, unit_ids, out=gathered)
            if gathered.dtype != rotated.dtype:
                gathered = room(f"own {name}", rotated, *gathered.shape).copy_(gathered)
            own.append(gathered.view(rows, count, size, -1))
        own_keys, own_v = own[0], own[1].flatten(1, 2)
        by_unit = products(rotated[b, s].permute(1, 2, 0, 3), own_keys)  # [T, m, G, size]
        scores = bounded(by_unit.transpose(1, 2).flatten(2), job.scale, job.softcap)
        out[b, s] = (scores.softmax(dim=-1).to(own_v.dtype) @ own_v).transpose(0, 1)
        lse[b, s] = scores.logsumexp(dim=-1).T


def _group_rows(job: PerRow, flash: bool, room: _Room, out: Tensor, lse: Tensor) -> None:
    """The rows that chose a unit are gathered, and the unit is read once for all of them, in place."""
    q, keys, v, units, positions = job.q, job.keys, job.v, job.units, job.positions
    batch, heads, rows, width = q.shape
    sharing, count = units.shape[1], units.shape[-1]
    group = heads // sharing
    for b, s in product(range(batch), range(sharing)):
        mine, head = slice(s * group, (s + 1) * group), s * keys.shape[1] // sharing
        chosen = units[b, s].flatten()
        order = chosen.argsort(stable=True)
        at = positions if positions.dim() == 2 else positions[b, s * positions.shape[1] // sharing]
        cos, sin = (x.index_select(0, at.flatten()[order]) for x in job.table)
        # Rows of a group's heads lie side by side, so that they are copied in one go.
        by_row = q[b, mine].transpose(0, 1).reshape(rows, -1)
        own_q, sorted_q = (room(name, q, rows * count, group * width) for name in ("rows", "queries"))
        torch.index_select(by_row, 0, order // count, out=own_q)
        own_q, sorted_q = (x.view(1, -1, group, width) for x in (own_q, sorted_q))
        sorted_q = job.rope.rotate_q(own_q.transpose(1, 2), cos, sin, out=sorted_q.transpose(1, 2)).transpose(1, 2)
        sorted_out = room("out", q, rows * count, group * v.shape[-1])
        sorted_lse = room("lse", lse, rows * count, group)
        ends = chosen.bincount().cumsum(0).tolist()
        for unit, (a, z) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if a == z:
                continue
            tokens = slice(unit * job.size, (unit + 1) * job.size)
            own_keys, own_v = (x[b : b + 1, head : head + 1, tokens] for x in (keys, v))
            part, part_lse = _attend(job, sorted_q[:, a:z].reshape(1, 1, -1, width), own_keys, own_v, flash)
            sorted_out[a:z], sorted_lse[a:z] = part.reshape(z - a, -1), part_lse.view(z - a, group)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        whole, whole_lse = _merged_from(sorted_out.view(-1, v.shape[-1]), sorted_lse, back.view(rows, count))
        out[b, mine], lse[b, mine] = whole.transpose(0, 1), whole_lse.T


def _attend(job: Gathered, q: Tensor, k: Tensor, v: Tensor, flash: bool) -> tuple[Tensor, Tensor]:
    """Every row of ``q`` ``[B, H, R, D]`` to every key ``[B, H, K, D]``: output and log-sum-exp."""
    if flash:
        dk, dv = k.shape[-1], v.shape[-1]
        if dk != dv:  # the op wants equal head sizes; zero channels change neither scores nor values
            pad = torch.nn.functional.pad
            q, k, v = (pad(x, (0, max(dk, dv) - x.shape[-1])) for x in (q, k, v))
        q, k, v = (unit_stride(x) for x in (q, k, v))  # the op takes it for granted
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, scale=job.scale)
        return out[..., :dv], lse
    scores = bounded(products(q, k), job.scale, job.softcap)
    return scores.softmax(dim=-1).to(q.dtype) @ v, scores.logsumexp(dim=-1)


def _merged_from(out: Tensor, lse: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """``merged`` ``[T, G, Dv]`` and ``[T, G]``, with the parts of row ``t`` at rows ``back[t]`` of ``[T · m, G]``."""
    (rows, count), group = back.shape, lse.shape[1]
    part_lse = lse.index_select(0, back.flatten()).view(rows, count, group).transpose(1, 2)  # [T, G, m]
    total = part_lse.logsumexp(dim=-1)
    weights = (part_lse - total[..., None]).exp_().flatten(0, 1)
    at = (back[:, None, :] * group + torch.arange(group, device=back.device)[:, None]).flatten(0, 1)
    if out.dtype == weights.dtype:
        # A weighted sum of rows is an embedding bag, which reads each part once and writes none.
        bag = torch.nn.functional.embedding_bag(at, out, mode="sum", per_sample_weights=weights)
        return bag.view(rows, group, -1), total
    parts = out.index_select(0, at.flatten()).view(rows, group, count, -1)
    return merged(parts.unbind(-2), part_lse.unbind(-1))
