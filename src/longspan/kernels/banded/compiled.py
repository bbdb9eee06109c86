"""Banded attention in C: one softmax over all bands, keys and values read where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longspan.kernels import native
from longspan.kernels.banded.plan import Plan
from longspan.kernels.native import calls
from longspan.kernels.native.structs import ALL
from longspan.rope import Rope, Turn

_BANDED = ALL["Banded"]


def why_not(q: Tensor, keys: Sequence[Any], v: Any, rope: Rope) -> str | None:
    """Why this kernel cannot run on these inputs, or None."""
    if rope.norm_q is not None:
        return "the model normalises queries after they are turned"
    return native.why_not(q, *keys, v)


def run(
    q: Tensor,
    keys: Sequence[Tensor],
    v: Tensor,
    plan: Plan,
    turns: Sequence[Turn],
    rope: Rope,
    *,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Output ``[B, H, T, Dv]`` in q's dtype and log-sum-exp ``[B, H, T]`` in fp32."""
    q, v, keys = calls.side_by_side(q), calls.side_by_side(v), [calls.side_by_side(x) for x in keys]
    out, lse = calls.room(q, v)
    held = plan.kept.get("compiled")
    if held is None or held[0] is not turns:
        own = [calls.plain(turn) for turn in turns]
        # The angles are kept along, since the tables are but their addresses.
        low, high = torch.stack(plan.lo), torch.stack(plan.hi)
        tables = b"".join(calls.table(turn, rope) for turn in own)
        held = turns, own, tables, low, high, int((high - low).clamp(min=0).sum())
        plan.kept["compiled"] = held
    _, _, tables, low, high, seen = held
    items, tokens = q.shape[0] * v.shape[1], native.tile_tokens(q.shape[1], v.shape[1])
    job = calls.job(q, v, out, lse, rope, scale, softcap, v.shape[1], False)
    for name, ends in (("low", low), ("high", high)):
        calls.expect(name, ends, len(keys), q.shape[2], dtype=torch.int64, contiguous=True)
    packed = _BANDED.pack(job=job, low=low.data_ptr(), high=high.data_ptr(), bands=len(keys), tokens=tokens)
    given = b"".join((packed, *(calls.keys(x, q, v) for x in keys), tables))
    if q.shape[2] <= native.FEW:
        native.run("banded", items, given, items * seen * calls.token(q, v))
    else:
        native.run("banded_many", items * -(-q.shape[2] // tokens), given)
    return out, lse
