"""Jobs of gathered attention of any shape, and what a run of one is held to."""

from __future__ import annotations

from dataclasses import replace

import torch

from longspan.kernels.gathered import PerQueryChunk, PerRow, gathered
from longspan.rope import Rope, Table
from support.cases import HEAD, assert_lse_within_budget, assert_within_budget, inv_freq

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PLACES = 50


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def common(rows, stored, *, batch=1, group=2, kv_heads=2, dk=HEAD, dv=HEAD, dtype=torch.float32, rope=None, cap=None):
    return {
        "q": random(batch, group * kv_heads, rows, dk, dtype=dtype, seed=1),
        "keys": random(batch, kv_heads, stored, dk, dtype=dtype, seed=2),
        "v": random(batch, kv_heads, stored, dv, dtype=dtype, seed=3),
        "rope": rope or Rope(Table(inv_freq(dk)), dk),
        "scale": 1.2 * dk**-0.5,
        "softcap": cap,
    }


def choice(*shape, of):
    order = torch.rand(*shape[:-1], of, generator=torch.Generator().manual_seed(4)).argsort(dim=-1)
    return order[..., : shape[-1]].sort(dim=-1).values


def per_row(rows, size, count, available=5, *, share=2, own_positions=True, **options):
    base = common(rows, available * size + size // 2, **options)
    units = choice(base["q"].shape[0], share, rows, count, of=available)
    shape = units.shape if own_positions else (rows, count)
    positions = torch.randint(0, PLACES, shape, generator=torch.Generator().manual_seed(5))
    return PerRow(units=units, size=size, positions=positions, table=base["rope"].table(torch.arange(PLACES)), **base)


def per_chunk(rows, count, stored=90, *, share=2, runs=1, rotated=False, edges=None, **options):
    base = common(rows, stored, **options)
    table = base["rope"].table
    chunks = () if edges is None else (len(edges) - 1,)
    tokens = choice(base["q"].shape[0], share, *chunks, count, of=stored)
    ends = torch.tensor([0, count // 3, count // 3, count])[-runs:].expand(*tokens.shape[:-1], -1)
    return PerQueryChunk(
        tokens=tokens,
        cos_sin=tuple(table(torch.arange(rows) + 3 * n) for n in range(runs)),
        ends=ends if runs > 1 else None,
        key_cos_sin=table(torch.arange(count)) if rotated else None,
        edges=edges,
        **base,
    )


def wide(job):
    return replace(job, q=job.q.double(), keys=job.keys.double(), v=job.v.double())


def whole(job, impl):
    """The output and log-sum-exp of all rows."""
    parts = [(out.clone(), lse.clone()) for _, out, lse in gathered(job, impl)]
    return tuple(torch.cat(x, dim=2) for x in zip(*parts, strict=True))


def check(job):
    """Held to what torch's own operations err by in the same dtype."""
    ((_, out, lse),) = gathered(job, "compiled")
    truth, true_lse = whole(wide(job), "reference")
    plain, plain_lse = whole(job, "torch")
    assert out.dtype == job.q.dtype and out.shape == truth.shape and lse.dtype == torch.float32
    assert_within_budget(out, plain, truth)
    assert_lse_within_budget(lse, plain_lse, true_lse)
