"""Attention over static bands: several key ranges per query, one softmax over them all.

Contract. For query row ``t`` and band ``b`` with keys ``lo_b(t) ≤ j < hi_b(t)``, the score is
``scale · rotate(q_t, cos_sin_b(t)) · keys_b[j]``; ``softcap`` bounds it; one softmax runs over the keys of
all bands; the output is the weighted sum of the values. The log-sum-exp goes with it, so that the result can be merged
with that of other keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.kernels.banded import compiled, flash_cpu, reference, torch_ops, triton
from longspan.kernels.banded.contract import BandAngles, Banded, Pages
from longspan.kernels.banded.plan import Plan, make_plan, plan_rows
from longspan.kernels.dispatch import Impl, flash_unsupported_reason, resolve
from longspan.rope import CosSin, Rope

__all__ = ["BandAngles", "Banded", "Impl", "Pages", "Plan", "banded", "make_plan", "plan_rows"]

_PAID_BY = 16  # query rows from which a padded copy of all keys or values is worth making
_RUN = {
    "triton": triton.run,
    "compiled": compiled.run,
    "flash_cpu": flash_cpu.run,
    "torch": torch_ops.run,
    "reference": reference.run,
}
_RAGGED = "triton", "compiled"  # take unlike rows in one call


def banded(
    q: Tensor,
    keys: Sequence[Tensor],
    v: Tensor,
    plan: Plan,
    cos_sin: Sequence[CosSin],
    rope: Rope,
    *,
    scale: float,
    softcap: float | None = None,
    impl: Impl = "auto",
    pages: Pages | None = None,
) -> tuple[Tensor, Tensor]:
    """Banded attention.

    Args:
        q: ``[B, H, T, D]`` unrotated; its tokens are the plan's queries.
        keys: for each band of the plan ``[B, Hkv, N, D]``, rotated to the band's key positions.
        v: ``[B, Hkv, N, Dv]``.
        cos_sin: for each band of the plan cos, sin ``[T, r / 2]`` of its query positions, ``[B, T, r / 2]`` if the
            plan's rows are unlike.
        rope: how cos and sin rotate a query.
        scale: multiplies every score.
        softcap: ``c`` in ``c · tanh(score / c)``.
        impl: see ``longspan.kernels.dispatch``.
        pages: where the rows, which are unlike, find their keys among ``keys`` and ``v`` ``[1, Hkv, N, D]``, of which
            all rows read.

    Returns:
        ``[B, H, T, Dv]`` in q's dtype, and the log-sum-exp ``[B, H, T]`` in fp32 (fp64 for fp64): 0 and ``-inf`` for a
        query that no band gives a key.

    Raises:
        ValueError: the named implementation cannot run here.
    """
    if pages is not None:
        rows = {id(x): x.expand(len(q), *x.shape[1:]) for x in (*keys, v)}
        keys, v = [rows[id(k)] for k in keys], rows[id(v)]
    job = Banded(q, keys, v, plan, cos_sin, rope, scale, softcap, pages)
    # Head sizes that differ make flash_cpu pad all keys or values, which a few queries do not repay.
    pads = q.shape[-1] != v.shape[-1] and q.shape[2] < _PAID_BY
    name = resolve(
        impl,
        q.device,
        {
            "triton": lambda: triton.unsupported_reason(q, keys, v, scale),
            "compiled": lambda: compiled.unsupported_reason(job),
            "flash_cpu": lambda: flash_unsupported_reason(q, softcap),
        },
        slower=("flash_cpu",) if pads else (),
    )
    if plan.unlike and name not in _RAGGED:
        outs, sums = zip(*map(_RUN[name], job.by_row()), strict=True)
        return torch.cat(outs), torch.cat(sums)
    return _RUN[name](job)
