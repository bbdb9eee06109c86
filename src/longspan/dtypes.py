"""The dtype of sums."""

from __future__ import annotations

import torch
from torch import Tensor


def accumulator(x: Tensor) -> torch.dtype:
    """The dtype of scores, log-sum-exps and index entries: fp64 for fp64 tensors of any shape, fp32 for all others."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def widen(x: Tensor) -> Tensor:
    """``x``, of any shape, in its ``accumulator``."""
    return x.to(accumulator(x))
