"""Which dtype sums are made in, and products whose sums are."""

from __future__ import annotations

import torch
from torch import Tensor

_FEW = 4  # rows below which a product only reads keys, in whatever dtype
_PIECE = 2048  # keys widened at a time


def accumulator(x: Tensor) -> torch.dtype:
    """fp64 for fp64 tensors, fp32 for all others: what scores, log-sum-exps and index entries are kept in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def widen(x: Tensor) -> Tensor:
    """``x`` in its ``accumulator``."""
    return x.to(accumulator(x))


def products(q: Tensor, keys: Tensor) -> Tensor:
    """``q · k`` of every query ``[..., T, D]`` and key ``[..., M, D]``, ``[..., T, M]`` in the ``accumulator``.

    On a CPU operands of reduced dtypes are widened first: torch multiplies those five to eight times slower there.
    """
    wide, rows = accumulator(q), q.shape[-2]
    if q.dtype == wide or q.device.type != "cpu" or rows < _FEW:
        return (q @ keys.mT).to(wide)
    q, parts = q.to(wide), keys.split(_PIECE, dim=-2)  # what is widened stays in the processor's cache
    return torch.cat([q @ part.to(wide).mT for part in parts], dim=-1)
