"""Banded attention on CPU: one call of torch's flash attention per span, merged by log-sum-exp."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from longspan.dtypes import accumulator
from longspan.errors import GradientError
from longspan.kernels.banded.contract import Banded
from longspan.kernels.banded.plan import Block, KeySpan
from longspan.kernels.layout import unit_stride
from longspan.kernels.softmax import merged

# Before torch 2.9 the op reads beyond the keys if queries have more heads, and raises nothing.
TAKES_GROUPS = torch.__version__ >= "2.9"
_FOLD = 256  # rows up to which folding a group's query heads gains more than its copy of q and out costs


def run(job: Banded) -> tuple[Tensor, Tensor]:
    """Output ``[B, H, T, Dv]`` in q's dtype and log-sum-exp ``[B, H, T]`` (fp32, fp64 for fp64)."""
    q, keys, v, blocks = job.q, job.keys, job.v, job.plan.blocks
    dv, dk = v.shape[-1], q.shape[-1]
    width = max(dk, dv)  # the op wants equal head sizes; zero channels change neither scores nor values
    if dk != width:
        q_pad = (0, width - dk)
        keys = [torch.nn.functional.pad(k, q_pad) for k in keys]
    if dv != width:
        v = torch.nn.functional.pad(v, (0, width - dv))
    batch, heads, rows, _ = q.shape
    lse = torch.empty(batch, heads, rows, dtype=accumulator(q))
    # In memory tokens come before heads, as the op returns it and as the caller's projection wants it.
    out = q.new_empty(batch, rows, heads, dv).transpose(1, 2)
    for block in blocks:
        if not block.spans:
            out[:, :, block.r0 : block.r1], lse[:, :, block.r0 : block.r1] = 0, float("-inf")
            continue
        rotated = _rotations(job, block, width)
        parts = [
            _flash(rotated[s.band], keys[s.band][:, :, s.k0 : s.k1], v[:, :, s.k0 : s.k1], s, job.scale)
            for s in block.spans
        ]
        part, part_lse = merged(*zip(*parts, strict=True))
        if len(blocks) == 1:
            return part[..., :dv].to(q.dtype), part_lse
        out[:, :, block.r0 : block.r1], lse[:, :, block.r0 : block.r1] = part[..., :dv], part_lse
    return out, lse


def _rotations(job: Banded, block: Block, width: int) -> dict[int, Tensor]:
    """The block's queries, rotated for each of its bands and padded to ``width``."""
    rotated, rows = {}, slice(block.r0, block.r1)
    for band in {span.band for span in block.spans}:
        cos, sin = job.cos_sin[band]
        x = job.rope.rotate_q(job.q[:, :, rows], cos[rows], sin[rows])
        rotated[band] = x if x.shape[-1] == width else torch.nn.functional.pad(x, (0, width - x.shape[-1]))
    return rotated


def _flash(q: Tensor, k: Tensor, v: Tensor, span: KeySpan, scale: float) -> tuple[Tensor, Tensor]:
    mask = None
    if span.shape == "window":
        mask = _window_mask(q.shape[2], span.k1 - span.k0, span.first, span.lo_slope, span.hi_slope, q.dtype)
    q, k, v = (unit_stride(x) for x in (q, k, v))  # the op takes it for granted
    batch, heads, rows, width = q.shape
    folded = span.shape == "full" and rows <= _FOLD and heads != k.shape[1]
    if folded:
        # Few rows a head would read the keys once per query head; as rows of its key head the group reads them once.
        q = q.reshape(batch, k.shape[1], heads // k.shape[1] * rows, width)
    elif not TAKES_GROUPS and heads != k.shape[1]:
        k, v = (x.repeat_interleave(heads // k.shape[1], dim=1) for x in (k, v))
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, span.shape == "causal", attn_mask=mask, scale=scale
    )
    if torch.is_grad_enabled():
        lse = _NoGradient.apply(lse, q, k)
    if folded:
        out, lse = out.reshape(batch, heads, rows, width), lse.reshape(batch, heads, rows)
    return out, lse


class _NoGradient(torch.autograd.Function):
    """The op's log-sum-exp carries no gradient; a merge that asks for one must fail, not be silently wrong.

    It takes ``q`` and ``k``: a hook on ``lse`` is not called if the gradients of some tensors alone are asked for.
    """

    @staticmethod
    def forward(ctx: Any, lse: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return lse.view_as(lse)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        raise GradientError("flash_cpu does not support gradients across key ranges; use impl='torch' for gradients")


@lru_cache(maxsize=8)
@torch.inference_mode(False)  # kept for later calls, which may be outside inference mode and follow gradients
def _window_mask(rows: int, cols: int, first: int, lo_slope: int, hi_slope: int, dtype: torch.dtype) -> Tensor:
    t, j = torch.arange(rows)[:, None], torch.arange(cols)[None, :]
    seen = (j >= lo_slope * t) & (j < first + hi_slope * t)
    return torch.zeros(rows, cols, dtype=dtype).masked_fill_(~seen, float("-inf"))
