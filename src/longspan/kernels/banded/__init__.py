"""Attention over static bands: several key ranges per query, one softmax over them all.

Contract. For query row ``t`` and band ``b`` with keys ``lo_b(t) ≤ j < hi_b(t)``, the score is
``scale · rotate(q_t, cos_sin_b(t)) · keys_b[j]``; ``softcap`` bounds it; one softmax runs over the keys of
all bands; the output is the weighted sum of the values. The log-sum-exp goes with it, so that the result can be merged
with that of other keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from longspan.kernels import backends
from longspan.kernels.banded import compiled, flash_cpu, reference, torch_ops, triton
from longspan.kernels.banded.contract import BandAngles, Banded, Pages
from longspan.kernels.banded.plan import Plan, make_plan, plan_rows
from longspan.kernels.dispatch import Impl, Implementation, Kernel
from longspan.kernels.gpu import tiles
from longspan.rope import CosSin, Rope

__all__ = ["BandAngles", "Banded", "Impl", "Pages", "Plan", "banded", "make_plan", "plan_rows"]

_PAID_BY = 16  # query rows from which a padded copy of all keys or values is worth making


def _row_by_row(run: Callable[[Banded], tuple[Tensor, Tensor]]) -> Callable[[Banded], tuple[Tensor, Tensor]]:
    """``run`` of a job whose rows may be unlike: of those each goes by itself."""

    def each(job: Banded) -> tuple[Tensor, Tensor]:
        if not job.plan.unlike:
            return run(job)
        outs, sums = zip(*map(run, job.by_row()), strict=True)
        return torch.cat(outs), torch.cat(sums)

    return each


def _flash_unsupported_reason(job: Banded) -> str | None:
    if tiles.offloaded(job.v) and job.q.shape[-1] != job.v.shape[-1]:
        return "keys and values differ in size, and to pad all of them all would have to be brought"
    return backends.flash_unsupported_reason(job.q, softcap=job.softcap)


def _pads(job: Banded) -> bool:
    """Whether all keys or values are padded, as head sizes differ, for queries too few to repay it."""
    return job.q.shape[-1] != job.v.shape[-1] and job.q.shape[2] < _PAID_BY


BANDED = Kernel(
    Implementation(
        backends.TRITON, triton.run, lambda job: triton.unsupported_reason(job.q, job.keys, job.v, job.scale)
    ),
    Implementation(backends.COMPILED, compiled.run, compiled.unsupported_reason),
    Implementation(
        backends.FLASH_CPU,
        _row_by_row(flash_cpu.run),
        _flash_unsupported_reason,
        slower=_pads,
    ),
    Implementation(backends.TORCH, _row_by_row(torch_ops.run)),
    Implementation(backends.REFERENCE, _row_by_row(reference.run)),
)


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
    out, lse = BANDED.choose(impl, q.device, job).run(job)
    return out, lse
