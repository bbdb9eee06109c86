"""How tensors lie in memory, as kernels in C and in Triton take and return them."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.rope import CosSin


def unit_stride(x: Tensor) -> Tensor:
    """``x`` ``[..., D]`` if its last axis is contiguous, as kernels read it; else a contiguous copy."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def empty_output(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """An output ``[B, H, T, Dv]`` for queries ``[B, H, T, D]``, and a log-sum-exp ``[B, H, T]`` in fp32.

    In memory tokens of the output come before heads, as the caller's projection wants them.
    """
    batch, heads, rows, _ = q.shape
    out = q.new_empty(batch, rows, heads, v.shape[-1]).transpose(1, 2)
    return out, torch.empty(batch, heads, rows, dtype=torch.float32, device=q.device)


def fp32_table(angles: CosSin) -> CosSin:
    """cos and sin ``[rows, r / 2]`` in fp32, contiguous."""
    cos, sin = angles
    return cos.float().contiguous(), sin.float().contiguous()
