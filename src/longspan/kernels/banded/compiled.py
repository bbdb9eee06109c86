"""Banded attention in C: one softmax over all bands, keys and values read in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longspan.kernels import cpu
from longspan.kernels.banded.plan import Plan
from longspan.kernels.cpu import packing
from longspan.kernels.cpu.structs import ALL
from longspan.rope import CosSin, Rope

_BANDED = ALL["Banded"]


def unsupported_reason(q: Tensor, keys: Sequence[Any], v: Any, rope: Rope) -> str | None:
    """Why this kernel cannot run on these inputs (shapes as for ``banded``), or None."""
    if rope.norm_q is not None:
        return "the model normalises queries after they are rotated"
    return cpu.unsupported_reason(q, *keys, v)


def run(
    q: Tensor,
    keys: Sequence[Tensor],
    v: Tensor,
    plan: Plan,
    cos_sin: Sequence[CosSin],
    rope: Rope,
    *,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Output ``[B, H, T, Dv]`` in q's dtype and log-sum-exp ``[B, H, T]`` in fp32."""
    q, v, keys = packing.unit_stride(q), packing.unit_stride(v), [packing.unit_stride(x) for x in keys]
    out, lse = packing.empty_output(q, v)
    cached = plan.derived.get("compiled")
    if cached is None or cached[0] is not cos_sin:
        fp32_tables = [packing.fp32_table(one) for one in cos_sin]
        # The angles are kept along, since the tables are but their addresses.
        low, high = torch.stack(plan.lo), torch.stack(plan.hi)
        tables = b"".join(packing.table(one, rope) for one in fp32_tables)
        cached = cos_sin, fp32_tables, tables, low, high, int((high - low).clamp(min=0).sum())
        plan.derived["compiled"] = cached
    _, _, tables, low, high, seen = cached
    items, tokens = q.shape[0] * v.shape[1], cpu.tile_tokens(q.shape[1], v.shape[1])
    job = packing.job(q, v, out, lse, rope, scale, softcap, v.shape[1], False)
    for name, ends in (("low", low), ("high", high)):
        packing.expect(name, ends, len(keys), q.shape[2], dtype=torch.int64, contiguous=True)
    packed = _BANDED.pack(job=job, low=low.data_ptr(), high=high.data_ptr(), bands=len(keys), tokens=tokens)
    packed_job = b"".join((packed, *(packing.keys(x, q, v) for x in keys), tables))
    if q.shape[2] <= cpu.DECODE_ROWS:
        cpu.run("banded_decode", items, packed_job, items * seen * packing.numbers_per_token(q, v))
    else:
        cpu.run("banded_prefill", items * -(-q.shape[2] // tokens), packed_job)
    return out, lse
