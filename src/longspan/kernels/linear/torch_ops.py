"""Products with a packed matrix by torch's operations: a part of the matrix after the other as numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.kernels.linear.contract import PackedMatrix, by_parts


def linear(x: Tensor, matrix: PackedMatrix, bias: Tensor | None, many: torch.dtype | None) -> Tensor:
    """``[..., K]`` to ``[..., N]``; see ``longspan.kernels.linear``."""
    return by_parts(x, matrix, bias, many, matrix.numbers)
