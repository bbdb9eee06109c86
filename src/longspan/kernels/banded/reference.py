"""The contract of banded attention, dense and in fp64."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.kernels.banded.contract import Banded
from longspan.kernels.softmax import bounded


def run(job: Banded) -> tuple[Tensor, Tensor]:
    """Output ``[B, H, T, Dv]`` in q's dtype and log-sum-exp ``[B, H, T]`` in fp64."""
    q, v, plan = job.q, job.v, job.plan
    fold = q.shape[1] // v.shape[1]
    j = torch.arange(v.shape[2], device=q.device)
    scores, values = [], []
    for lo, hi, angles, k in zip(plan.lo, plan.hi, job.cos_sin, job.keys, strict=True):
        seen = (j >= lo.to(q.device)[:, None]) & (j < hi.to(q.device)[:, None])
        rotated = job.rope.rotate_q(q.double(), *angles)
        band = bounded(rotated @ k.double().repeat_interleave(fold, dim=1).mT, job.scale, job.softcap)
        scores.append(band.masked_fill(~seen, float("-inf")))
        # What no query sees may be anything: before unlike rows lies padding.
        own = v.double().masked_fill(~seen.any(dim=0)[:, None], 0)
        values.append(own.repeat_interleave(fold, dim=1))
    joined = torch.cat(scores, dim=-1)
    lse = joined.logsumexp(dim=-1)
    weights = (joined - lse[..., None]).exp().masked_fill(lse.isneginf()[..., None], 0)
    return (weights @ torch.cat(values, dim=-2)).to(q.dtype), lse
