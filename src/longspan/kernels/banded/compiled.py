"""Banded attention in C: one softmax over all bands, keys and values read in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.kernels import cpu
from longspan.kernels.banded.contract import Banded
from longspan.kernels.banded.plan import Plan
from longspan.kernels.cpu import packing
from longspan.kernels.cpu.structs import ALL
from longspan.kernels.layout import empty_output, fp32_table, unit_stride
from longspan.kernels.once import once
from longspan.rope import CosSin, Rope

_BANDED = ALL["Banded"]


def unsupported_reason(job: Banded) -> str | None:
    """Why this kernel cannot run the job, or None."""
    if job.rope.norm_q is not None:
        return "the model normalises queries after they are rotated"
    return cpu.unsupported_reason(job.q, *job.keys, job.v)


def run(job: Banded) -> tuple[Tensor, Tensor]:
    """Output ``[B, H, T, Dv]`` in q's dtype and log-sum-exp ``[B, H, T]`` in fp32."""
    plan, cos_sin, rope = job.plan, job.cos_sin, job.rope
    q, v, keys = unit_stride(job.q), unit_stride(job.v), [unit_stride(x) for x in job.keys]
    out, lse = empty_output(q, v)
    packed_plan = once(plan.derived, "compiled", lambda: _pack_plan(plan, cos_sin, rope), cos_sin)
    tables, _, low, high, seen = packed_plan
    items, tokens = q.shape[0] * v.shape[1], cpu.tile_tokens(q.shape[1], v.shape[1])
    common = packing.job(q, v, out, lse, rope, job.scale, job.softcap, v.shape[1], False)
    plans = plan.unlike or 1
    for name, ends in (("low", low), ("high", high)):
        packing.expect(name, ends, len(keys), plans, q.shape[2], dtype=torch.int64, contiguous=True)
    if plans not in (1, q.shape[0]):
        raise ValueError(f"there are ranges of {plans} rows, and queries of {q.shape[0]}")
    table, size, step, columns = 0, 0, 0, 0
    if (pages := job.pages) is not None:
        packing.expect("the page table", pages.table, q.shape[0], None, dtype=torch.int32)
        table, size, step, columns = pages.table.data_ptr(), pages.size, pages.step, pages.table.shape[1]
    packed = _BANDED.pack(
        job=common,
        low=low.data_ptr(),
        high=high.data_ptr(),
        bands=len(keys),
        plans=plans,
        tokens=tokens,
        pages=table,
        page_size=size,
        page_step=step,
        page_row=pages.table.stride(0) if pages is not None else 0,
        page_columns=columns,
    )
    packed_job = b"".join((packed, *(packing.keys(x, q, v) for x in keys), tables))
    if q.shape[2] <= cpu.DECODE_ROWS:
        cpu.run("banded_decode", items, packed_job, items * seen * (q.shape[-1] + v.shape[-1]))
    else:
        cpu.run("banded_prefill", items * -(-q.shape[2] // tokens), packed_job)
    return out, lse


def _pack_plan(plan: Plan, cos_sin: Sequence[CosSin], rope: Rope) -> tuple[bytes, object, Tensor, Tensor, int]:
    """Tables of angles and their tensors, ends of ranges ``[bands, rows, T]``, and how many keys a row sees."""
    owners = [fp32_table((cos.flatten(0, -2), sin.flatten(0, -2))) for cos, sin in cos_sin]
    low, high = (torch.stack(x).view(len(x), plan.unlike or 1, -1) for x in (plan.lo, plan.hi))
    seen = int((high - low).clamp(min=0).sum()) // low.shape[1]
    return b"".join(packing.table(one, rope) for one in owners), owners, low, high, seen
