"""Gathered attention in torch's own operations: flash attention on a CPU, matrix products anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from longspan.dtypes import accumulator
from longspan.kernels.gathered.contract import Gathered, Part, PerQueryChunk, PerRow

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
    """Some rows of the job at a time: their output and log-sum-exp, by flash attention or by matrix products."""
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
    if job.size == 1:
        run = _gather_tokens
    elif rows <= _GATHERED_BY_ROW or rows * count <= job.keys.shape[2] // job.size:
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
        part_job = replace(job, q=q[:, :, part], units=job.units[:, :, part], positions=job.positions[..., part, :])
        run(part_job, flash, room, out, lse)
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
    out, lse = _empty(job, batch, sharing, group, rows)
    for b in range(batch):
        for s in range(sharing):
            choice = s * tokens.shape[1] // sharing
            for x, buffer in zip((job.keys, job.v), buffers, strict=True):
                torch.index_select(x[b, s * x.shape[1] // sharing], 0, tokens[b, choice], out=buffer)
            keys, v = (x[None, None].to(q.device) for x in buffers)
            if job.key_cos_sin is not None:
                keys = job.rope.rotate_k(keys, *job.key_cos_sin)
            edges = [0, *ends[b][choice]] if ends is not None else [0, tokens.shape[2]]
            parts = []
            for own, first, last in zip(rotated, edges[:-1], edges[1:], strict=True):
                if first == last:
                    continue
                # A group's heads are rows of their key head.
                run = slice(first, last)
                parts.append(
                    _attend(job, own[b, s].reshape(1, 1, -1, q.shape[3]), keys[:, :, run], v[:, :, run], flash)
                )
            whole, whole_lse = parts[0]
            if len(parts) > 1:
                outs, lses = zip(*parts, strict=True)
                whole, whole_lse = _merged(torch.stack(outs, dim=-2), torch.stack(lses, dim=-1))
            out[b, s], lse[b, s] = whole.view(group, rows, -1), whole_lse.view(group, rows)
    return out.flatten(1, 2), lse.flatten(1, 2)


def _gather_rows(job: PerRow, flash: bool, room: _Room, out: Tensor, lse: Tensor) -> None:
    """Each row's units are copied, and a head's (row, unit) pairs run as one batch."""
    q, keys, v, size = job.q, job.keys, job.v, job.size
    batch, heads, rows, _ = q.shape
    sharing, count = job.units.shape[1], job.units.shape[-1]
    group = heads // sharing
    rotated = _rotated(job).unflatten(1, (sharing, group))  # [B, S, G, T · m, D]
    units = job.units.to(keys.device)
    buffers = [room(name, x, rows * count, size * x.shape[-1]) for name, x in (("keys", keys), ("values", v))]
    parts, part_lses = _empty(job, batch, sharing, rows * count, group)
    for b in range(batch):
        for s in range(sharing):
            head, unit_ids = s * keys.shape[1] // sharing, units[b, s].flatten()
            for x, buffer in zip((keys, v), buffers, strict=True):
                whole = x[b, head, : x.shape[2] // size * size].unflatten(0, (-1, size)).flatten(1)
                torch.index_select(whole, 0, unit_ids, out=buffer)
            own_keys, own_v = (x.view(-1, 1, size, x.shape[1] // size).to(q.device) for x in buffers)
            pairs = rotated[b, s].transpose(0, 1)[:, None]  # [T · m, 1, G, D]
            part, part_lse = _attend(job, pairs, own_keys, own_v, flash)
            parts[b, s], part_lses[b, s] = part[:, 0], part_lse[:, 0]
    parts = parts.unflatten(2, (rows, count)).permute(0, 1, 4, 2, 3, 5).flatten(1, 2)  # [B, H, T, m, Dv]
    out[:], lse[:] = _merged(parts, part_lses.unflatten(2, (rows, count)).permute(0, 1, 4, 2, 3).flatten(1, 2))


def _gather_tokens(job: PerRow, flash: bool, room: _Room, out: Tensor, lse: Tensor) -> None:
    """Units of one token: a row's few keys are too few for flash attention, and too scattered to group rows by them."""
    q, wide = job.q, accumulator(job.q)
    batch, heads, rows, _ = q.shape
    sharing, count = job.units.shape[1], job.units.shape[-1]
    rotated = _rotated(job).unflatten(2, (rows, count)).unflatten(1, (sharing, -1)).to(wide)
    units = job.units.to(job.keys.device)
    out, lse = out.unflatten(1, (sharing, -1)), lse.unflatten(1, (sharing, -1))
    for b in range(batch):
        for s in range(sharing):
            head, unit_ids = s * job.keys.shape[1] // sharing, units[b, s].flatten()
            keys, v = (
                x[b, head].index_select(0, unit_ids).to(q.device, wide).view(rows, count, -1) for x in (job.keys, job.v)
            )
            scores = _bounded(job, (rotated[b, s] * keys).sum(dim=-1))  # [G, T, m]
            out[b, s] = (scores.softmax(dim=-1)[..., None] * v).sum(dim=-2)
            lse[b, s] = scores.logsumexp(dim=-1)


def _group_rows(job: PerRow, flash: bool, room: _Room, out: Tensor, lse: Tensor) -> None:
    """The rows that chose a unit are gathered, and the unit is read once for all of them, in place."""
    q, keys, v, units, positions = job.q, job.keys, job.v, job.units, job.positions
    batch, heads, rows, width = q.shape
    sharing, count = units.shape[1], units.shape[-1]
    group = heads // sharing
    for b in range(batch):
        for s in range(sharing):
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
                own_keys, own_v = (x[b : b + 1, head : head + 1, tokens].to(q.device) for x in (keys, v))
                part, part_lse = _attend(job, sorted_q[:, a:z].reshape(1, 1, -1, width), own_keys, own_v, flash)
                sorted_out[a:z], sorted_lse[a:z] = part.reshape(z - a, -1), part_lse.view(z - a, group)
            back = torch.empty_like(order)
            back[order] = torch.arange(len(order), device=order.device)
            whole, whole_lse = _merged_from(sorted_out.view(-1, v.shape[-1]), sorted_lse, back.view(rows, count))
            out[b, mine], lse[b, mine] = whole.transpose(0, 1), whole_lse.T


def _rotated(job: PerRow) -> Tensor:
    """Queries rotated for each of their units: ``[B, H, T · m, D]``."""
    batch, heads, rows, width = job.q.shape
    positions, count = job.positions, job.positions.shape[-1]
    spread = job.q.unsqueeze(3).expand(-1, -1, -1, count, -1).reshape(batch, heads, rows * count, width)
    if positions.dim() == 4:
        positions = positions.repeat_interleave(heads // positions.shape[1], dim=1)
    cos, sin = (x[positions.flatten(-2)] for x in job.table)
    return job.rope.rotate_q(spread, cos, sin)


def _empty(job: Gathered, *shape: int) -> tuple[Tensor, Tensor]:
    """Empty outputs ``[*shape, Dv]`` and log-sum-exps ``[*shape]``."""
    lse = torch.empty(*shape, dtype=accumulator(job.q), device=job.q.device)
    return job.q.new_empty(*shape, job.v.shape[-1]), lse


def _attend(job: Gathered, q: Tensor, k: Tensor, v: Tensor, flash: bool) -> tuple[Tensor, Tensor]:
    """Every row of ``q`` ``[B, H, R, D]`` to every key ``[B, H, K, D]``: output and log-sum-exp."""
    if flash:
        dk, dv = k.shape[-1], v.shape[-1]
        if dk != dv:  # the op wants equal head sizes; zero channels change neither scores nor values
            pad = torch.nn.functional.pad
            q, k, v = (pad(x, (0, max(dk, dv) - x.shape[-1])) for x in (q, k, v))
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, scale=job.scale)
        return out[..., :dv], lse
    scores = _bounded(job, (q @ k.mT).to(accumulator(q)))
    return scores.softmax(dim=-1).to(q.dtype) @ v, scores.logsumexp(dim=-1)


def _bounded(job: Gathered, products: Tensor) -> Tensor:
    scores = products * job.scale
    return scores if job.softcap is None else job.softcap * torch.tanh(scores / job.softcap)


def _merged(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Parts ``[..., m, Dv]`` and ``[..., m]`` of one softmax as a whole."""
    total = lse.logsumexp(dim=-1)
    weights = (lse - total[..., None]).exp_()
    # Summed in the log-sum-exp's dtype, so that reduced dtypes do not round at every part.
    whole = out[..., 0, :] * weights[..., 0, None]
    for n in range(1, out.shape[-2]):
        whole.addcmul_(out[..., n, :].to(whole.dtype), weights[..., n, None])
    return whole.to(out.dtype), total


def _merged_from(out: Tensor, lse: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """The same, ``[T, G, Dv]`` and ``[T, G]``, with the parts of row ``t`` at rows ``back[t]`` of ``[T · m, G]``."""
    rows, count = back.shape
    group = lse.shape[1]
    part_lse = lse.index_select(0, back.flatten()).view(rows, count, group).transpose(1, 2)  # [T, G, m]
    total = part_lse.logsumexp(dim=-1)
    weights = (part_lse - total[..., None]).exp_().flatten(0, 1)
    at = (back[:, None, :] * group + torch.arange(group, device=back.device)[:, None]).flatten(0, 1)
    if out.dtype == weights.dtype:
        # A weighted sum of rows is an embedding bag, which reads each part once and writes none.
        bag = torch.nn.functional.embedding_bag(at, out, mode="sum", per_sample_weights=weights)
        return bag.view(rows, group, -1), total
    parts = out.index_select(0, at.flatten()).view(rows, group, count, -1)
    return _merged(parts, part_lse)
