"""Gathered attention in C: chosen keys and values are read in place."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from longspan.kernels import cpu
from longspan.kernels.cpu import packing
from longspan.kernels.cpu.structs import ALL
from longspan.kernels.gathered.contract import PerQueryChunk, PerRow
from longspan.kernels.layout import empty_output, fp32_table, unit_stride
from longspan.kernels.once import once
from longspan.rope import CosSin

_UNITS, _TOKENS = ALL["Units"], ALL["Tokens"]
_OF_A_LAYER = _TOKENS.first("job", "keys")

_SHORT = 16  # units of fewer tokens are too short for rows to be gathered by them
ROWS_AT_ONCE = 4096  # rows whose sums are kept while they see all of their units


def unsupported_reason(job: PerRow | PerQueryChunk) -> str | None:
    """Why this kernel cannot run the job, or None."""
    if job.rope.norm_q is not None:
        return "the model normalises queries after they are rotated"
    if isinstance(job, PerQueryChunk) and job.edges is not None and job.key_cos_sin is not None:
        return "the keys of several chunks are rotated as they are gathered"
    return cpu.unsupported_reason(job.q, job.keys, job.v)


def run(job: PerRow | PerQueryChunk) -> tuple[Tensor, Tensor]:
    """Output ``[B, H, T, Dv]`` in q's dtype and log-sum-exp ``[B, H, T]`` in fp32."""
    out, lse = empty_output(job.q, job.v)
    run_into(out, lse, job, accumulate=False)
    return out, lse


def run_into(out: Tensor, lse: Tensor, job: PerRow | PerQueryChunk, accumulate: bool = True) -> None:
    """Write the job to ``out`` ``[B, H, T, Dv]`` and ``lse`` ``[B, H, T]``, in place.

    Args:
        accumulate: whether they are a part of the same softmax already, which the job is added to.
    """
    if isinstance(job, PerRow):
        _by_row(job, out, lse, accumulate)
    else:
        _by_query_chunk(job, out, lse, accumulate)


def _by_row(job: PerRow, out: Tensor, lse: Tensor, accumulate: bool) -> None:
    units, at, count = job.units, job.positions, job.units.shape[-1]
    if job.size < 1:
        raise ValueError(f"a unit has {job.size} tokens")
    q, keys, v = (unit_stride(x) for x in (job.q, job.keys, job.v))
    sharing = max(v.shape[1], units.shape[1])
    units, at, table = _each(units.long().contiguous(), sharing), at.long().contiguous(), fp32_table(job.table)
    at = at.expand(*units.shape[:2], -1, -1) if at.dim() == 2 else _each(at, sharing)
    items, rows, available = q.shape[0] * sharing, q.shape[2], keys.shape[2] // job.size
    tokens = max(1, min(rows, ROWS_AT_ONCE // cpu.group_size(q.shape[1], sharing)))
    packing.expect("units", units, q.shape[0], sharing, rows, count, dtype=torch.int64)
    packing.expect("positions", at, q.shape[0], sharing, rows, count, dtype=torch.int64)
    packed = _UNITS.pack(
        job=packing.job(q, v, out, lse, job.rope, job.scale, job.softcap, sharing, accumulate),
        keys=packing.keys(keys, q, v),
        table=packing.table(table, job.rope),
        units=units.data_ptr(),
        positions=at.data_ptr(),
        unit_step=units.stride()[:3],
        position_step=at.stride()[:3],
        count=count,
        size=job.size,
        tokens=tokens,
        batch=q.shape[0],
    )
    if job.size < _SHORT or rows <= cpu.DECODE_ROWS or rows * count <= available:
        cpu.run("units_decode", items, packed, items * rows * count * job.size * (q.shape[-1] + v.shape[-1]))
    else:
        cpu.run("units_prefill", items * -(-rows // tokens), packed)


def _by_query_chunk(job: PerQueryChunk, out: Tensor, lse: Tensor, accumulate: bool) -> None:
    if job.key_cos_sin is not None:
        job = _rotated(job, job.key_cos_sin)
    q, keys, v = (unit_stride(x) for x in (job.q, job.keys, job.v))
    sharing, rows = max(v.shape[1], job.tokens.shape[1]), q.shape[2]
    key, sources = ("compiled", *q.shape[:3], sharing, job.rope.rotated), (job.tokens, job.ends, job.edges, job.cos_sin)
    chunks = once(job.derived, key, lambda: _pack_chunks(job, sharing), *sources)
    packed = b"".join(
        (
            packing.job(q, v, out, lse, job.rope, job.scale, job.softcap, sharing, accumulate),
            packing.keys(keys, q, v),
            chunks.packed,
        )
    )
    groups = q.shape[0] * sharing
    if chunks.most <= cpu.DECODE_ROWS:
        numbers = groups * rows * job.tokens.shape[-1] * (q.shape[-1] + v.shape[-1])
        cpu.run("tokens_decode", groups * chunks.blocks, packed, numbers)
    else:
        cpu.run("tokens_prefill", groups * chunks.blocks, packed)


class _PackedChunks(NamedTuple):
    """``Tokens`` behind its job and keys: what the layers have in common whose queries have the same tokens.

    Attributes:
        packed: the bytes.
        owners: the tensors whose addresses are in them.
        blocks, most: how many blocks of rows there are, and the most rows of a chunk.
    """

    packed: bytes
    owners: tuple[object, ...]
    blocks: int
    most: int


def _pack_chunks(job: PerQueryChunk, sharing: int) -> _PackedChunks:
    batch, heads, rows, _ = job.q.shape
    edges, ends = job.edges or (0, rows), job.ends
    tokens = job.tokens if job.edges is not None else job.tokens[:, :, None]
    if ends is None:
        ends = _all(tokens.shape[3])
    elif job.edges is None:
        ends = ends[:, :, None]
    tokens = _each(tokens.long().contiguous(), sharing)
    ends = ends.long().contiguous().expand(tokens.shape[0], sharing, len(edges) - 1, -1)
    cos_sin, each = [fp32_table(one) for one in job.cos_sin], cpu.tile_tokens(heads, sharing)
    block_rows = _row_blocks(edges, each)
    packing.expect("tokens", tokens, batch, sharing, len(edges) - 1, None, dtype=torch.int64)
    packing.expect("ends", ends, batch, sharing, len(edges) - 1, len(cos_sin), dtype=torch.int64)
    packed = _TOKENS.pack(
        job=bytes(packing.JOB.size),
        keys=bytes(packing.KEYS.size),
        tokens=tokens.data_ptr(),
        ends=ends.data_ptr(),
        blocks=block_rows.data_ptr(),
        token_step=tokens.stride()[:3],
        end_step=ends.stride()[:3],
        runs=len(cos_sin),
        chunks=len(edges) - 1,
        row_blocks=len(block_rows),
        each=each,
        count=tokens.shape[3],
        batch=batch,
    )
    tables = b"".join(packing.table(one, job.rope) for one in cos_sin)
    most = max(stop - start for start, stop in pairwise(edges))
    owners = tokens, ends, block_rows, cos_sin
    return _PackedChunks(packed[_OF_A_LAYER.size :] + tables, owners, len(block_rows), most)


@lru_cache(maxsize=8)
def _all(count: int) -> Tensor:
    """``ends`` of a single run."""
    return torch.full((1, 1, 1, 1), count, device="cpu")


@lru_cache(maxsize=8)
def _row_blocks(edges: tuple[int, ...], each: int) -> Tensor:
    """``[n, 3]``: the first row of a block, one past its last, and the chunk, of at most ``each`` rows a block."""
    blocks = [
        (first, min(first + each, stop), chunk)
        for chunk, (start, stop) in enumerate(pairwise(edges))
        for first in range(start, stop, each)
    ]
    return torch.tensor(blocks, dtype=torch.int64, device="cpu")


def _rotated(job: PerQueryChunk, cos_sin: CosSin) -> PerQueryChunk:
    """The job with its tokens gathered and rotated, since no rotation of a query stands for all of theirs."""
    sharing = max(job.v.shape[1], job.tokens.shape[1])
    tokens = _each(job.tokens, sharing)[..., None]
    copies = sharing // job.v.shape[1]
    stored = (x if copies == 1 else x.repeat_interleave(copies, dim=1) for x in (job.keys, job.v))
    keys, v = (torch.take_along_dim(x, tokens, dim=2) for x in stored)
    order = torch.arange(tokens.shape[2], device="cpu").expand(tokens.shape[0], 1, -1)
    return replace(job, keys=job.rope.rotate_k(keys, *cos_sin), v=v, tokens=order, key_cos_sin=None, derived={})


def _each(x: Tensor, sharing: int) -> Tensor:
    """``x`` ``[B, S', ...]`` for ``S`` groups; one for all of them is repeated with a stride of zero."""
    return x if x.shape[1] == sharing else x.expand(-1, sharing, *[-1] * (x.dim() - 2))
