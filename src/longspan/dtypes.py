"""The dtype that sums are made in."""

from __future__ import annotations

import torch
from torch import Tensor


def accumulator(x: Tensor) -> torch.dtype:
    """fp64 for fp64 tensors, fp32 for all others: what scores, log-sum-exps and index entries are kept in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def widen(x: Tensor) -> Tensor:
    """``x`` in its ``accumulator``."""
    return x.to(accumulator(x))
