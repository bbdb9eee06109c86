"""Products with a packed matrix by torch's operations: a part of the matrix after the other as numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from longspan.weights.packed import PackedMatrix

_NUMBERS = 2**22  # of a part: it is in memory as numbers, whatever the size of the matrix


def linear(x: Tensor, matrix: PackedMatrix, bias: Tensor | None) -> Tensor:
    """See ``longspan.kernels.linear``."""
    return by_parts(x, matrix, bias, lambda rows: matrix.numbers(x.dtype, rows))


def by_parts(x: Tensor, matrix: PackedMatrix, bias: Tensor | None, numbers: Callable[[slice], Tensor]) -> Tensor:
    """``x · Wᵀ + bias``, where ``numbers`` gives some rows of W, ``[n, K]``, in x's dtype."""
    outs, width = matrix.shape
    bias = bias if bias is None else bias.to(x.dtype)
    each = max(1, _NUMBERS // width)
    if outs <= each:
        return torch.nn.functional.linear(x, numbers(slice(0, outs)), bias)
    found = x.new_empty(x.shape[0], outs)
    for first in range(0, outs, each):
        rows = slice(first, min(first + each, outs))
        found[:, rows] = torch.nn.functional.linear(x, numbers(rows), None if bias is None else bias[rows])
    return found
