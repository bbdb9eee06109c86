"""Gathered attention in C: chosen keys and values are read in place."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longspan.kernels import cpu
from longspan.kernels.cpu import packing
from longspan.kernels.cpu.structs import ALL
from longspan.kernels.gathered.contract import PerQueryChunk, PerRow
from longspan.kernels.layout import empty_output, fp32_table, unit_stride
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
    _run(job, out, lse, accumulate=False)
    return out, lse


def run_into(out: Tensor, lse: Tensor, job: PerRow | PerQueryChunk) -> None:
    """Add the job to ``out`` ``[B, H, T, Dv]`` and ``lse`` ``[B, H, T]``, a part of the same softmax, in place."""
    _run(job, out, lse, accumulate=True)


def _run(job: PerRow | PerQueryChunk, out: Tensor, lse: Tensor, accumulate: bool) -> None:
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
        available=available,
        tokens=tokens,
        batch=q.shape[0],
    )
    if job.size < _SHORT or rows <= cpu.DECODE_ROWS or rows * count <= available:
        cpu.run("units_decode", items, packed, items * rows * count * job.size * packing.numbers_per_token(q, v))
    else:
        cpu.run("units_prefill", items * -(-rows // tokens), packed)


def _by_query_chunk(job: PerQueryChunk, out: Tensor, lse: Tensor, accumulate: bool) -> None:
    if job.key_cos_sin is not None:
        job = _rotated(job, job.key_cos_sin)
    q, keys, v = (unit_stride(x) for x in (job.q, job.keys, job.v))
    sharing, rows = max(v.shape[1], job.tokens.shape[1]), q.shape[2]
    chunks = _packed_chunks(job, sharing)
    parts = (
        packing.job(q, v, out, lse, job.rope, job.scale, job.softcap, sharing, accumulate),
        packing.keys(keys, q, v),
        chunks.packed,
    )
    groups = q.shape[0] * sharing
    if chunks.most <= cpu.DECODE_ROWS:
        numbers = groups * rows * chunks.count * packing.numbers_per_token(q, v)
        cpu.run("tokens_decode", groups * chunks.blocks, b"".join(parts), numbers)
    else:
        cpu.run("tokens_prefill", groups * chunks.blocks, b"".join(parts))


@dataclass(frozen=True)
class _PackedChunks:
    """``Tokens`` behind its job and keys: what the layers have in common whose queries have the same tokens.

    Attributes:
        made_of: the job's tensors that it was made of.
        sizes: the sizes that it was made for.
        owners: the tensors whose addresses are in ``packed``.
        blocks, most, count: how many blocks of rows there are, the most rows of a chunk, and tokens of a chunk.
    """

    made_of: tuple[object, ...]
    sizes: tuple[int, ...]
    owners: tuple[object, ...]
    packed: bytes
    blocks: int
    most: int
    count: int


def _packed_chunks(job: PerQueryChunk, sharing: int) -> _PackedChunks:
    """Taken from the job's ``derived`` where they were made of the same tensors."""
    made_of = job.tokens, job.ends, job.edges, job.cos_sin
    sizes = *job.q.shape[:3], sharing, job.rope.rotated
    found: _PackedChunks | None = job.derived.get("compiled")
    if found is None or found.sizes != sizes or any(a is not b for a, b in zip(found.made_of, made_of, strict=True)):
        found = job.derived["compiled"] = _pack_chunks(job, made_of, sizes)
    return found


def _pack_chunks(job: PerQueryChunk, made_of: tuple[object, ...], sizes: tuple[int, ...]) -> _PackedChunks:
    batch, heads, rows, sharing, _ = sizes
    tokens, edges = job.tokens.long().contiguous(), job.edges or (0, rows)
    if job.edges is None:
        tokens = tokens[:, :, None]
    count = tokens.shape[3]
    ends = (job.ends if job.ends is not None else torch.full((1, 1, 1), count, device="cpu")).long().contiguous()
    if job.edges is None or job.ends is None:
        ends = ends[:, :, None]
    ends = ends.expand(tokens.shape[0], sharing, len(edges) - 1, -1)
    tokens = _each(tokens, sharing)
    cos_sin, each = [fp32_table(one) for one in job.cos_sin], cpu.tile_tokens(heads, sharing)
    blocks = [
        (first, min(first + each, stop), chunk)
        for chunk, (start, stop) in enumerate(zip(edges[:-1], edges[1:], strict=True))
        for first in range(start, stop, each)
    ]
    block_rows = torch.tensor(blocks, dtype=torch.int64, device="cpu")
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
        row_blocks=len(blocks),
        each=each,
        count=count,
        batch=batch,
    )
    tables = b"".join(packing.table(one, job.rope) for one in cos_sin)
    return _PackedChunks(
        made_of=made_of,
        sizes=sizes,
        owners=(tokens, ends, block_rows, cos_sin),
        packed=packed[_OF_A_LAYER.size :] + tables,
        blocks=len(blocks),
        most=max(stop - start for start, stop in zip(edges[:-1], edges[1:], strict=True)),
        count=count,
    )


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
