"""Banded attention in tiles of plain matrix products: any device, with softcap."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.dtypes import accumulator
from longspan.kernels.banded.contract import Banded
from longspan.kernels.softmax import bounded, products

SCORES_AT_ONCE = 1 << 26  # scores held at once (fp32: 256 MB)


def run(job: Banded) -> tuple[Tensor, Tensor]:
    """Output ``[B, H, T, Dv]`` in q's dtype and log-sum-exp ``[B, H, T]`` (fp32, fp64 for fp64)."""
    q, v, plan = job.q, job.v, job.plan
    batch, heads, rows, _ = q.shape
    kv_heads = v.shape[1]
    wide = accumulator(q)
    out = q.new_zeros(batch, heads, rows, v.shape[-1])
    lse = torch.full((batch, heads, rows), float("-inf"), dtype=wide, device=q.device)
    reach = sum(max(int(hi.max()) - int(lo.min()), 1) for lo, hi in zip(plan.lo, plan.hi, strict=True))
    step = max(1, min(rows, SCORES_AT_ONCE // max(batch * heads * reach, 1)))
    keyless = torch.stack([hi <= lo for lo, hi in zip(plan.lo, plan.hi, strict=True)]).all(dim=0)
    for r0 in range(0, rows, step):
        r1 = min(r0 + step, rows)
        scores, spans = [], []
        for lo, hi, (cos, sin), k in zip(plan.lo, plan.hi, job.cos_sin, job.keys, strict=True):
            lo, hi = lo[r0:r1], hi[r0:r1]
            used = hi > lo
            if not bool(used.any()):
                continue
            k0, k1 = int(lo[used].min()), int(hi.max())
            rotated = job.rope.rotate_q(q[:, :, r0:r1], cos[r0:r1], sin[r0:r1])
            rotated = rotated.reshape(batch, kv_heads, -1, q.shape[-1])  # a group's heads as rows of its key head
            scored = products(rotated, k[:, :, k0:k1]).view(batch, heads, r1 - r0, k1 - k0)
            band = bounded(scored, job.scale, job.softcap)
            j = torch.arange(k0, k1)
            unseen = ((j < lo[:, None]) | (j >= hi[:, None])).to(q.device)
            scores.append(band.masked_fill_(unseen, float("-inf")))
            spans.append((k0, k1))
        if not scores:
            continue
        joined = scores[0] if len(scores) == 1 else torch.cat(scores, dim=-1)
        lse[:, :, r0:r1] = joined.logsumexp(dim=-1)
        weights = joined.softmax(dim=-1).to(q.dtype)
        if keyless.any():
            # NaN so far, and not in these rows alone: products in bf16 on AMX carry a NaN into the row before.
            weights = weights.masked_fill(keyless[r0:r1, None].to(q.device), 0)
        weights = weights.view(batch, kv_heads, -1, joined.shape[-1])
        total, at = torch.zeros((), device=q.device), 0
        for k0, k1 in spans:
            total = total + weights[..., at : at + k1 - k0] @ v[:, :, k0:k1]
            at += k1 - k0
        out[:, :, r0:r1] = total.view(batch, heads, r1 - r0, -1)
    return out, lse
