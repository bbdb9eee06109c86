"""A matrix in codes of 4 or 8 bits, with a scale for each group of a row's numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

FEW = 16  # rows up to which a kernel may meet codes as they are
GROUP = 32  # numbers that share a scale, unless a file has other groups
_NUMBERS = 2**22  # of a part: it is in memory as numbers, whatever the size of the matrix


@dataclass(frozen=True, eq=False)
class PackedMatrix:
    """``w[n, k] = scale[n, k / group] · code[n, k] + minimum[n, k / group]``.

    Attributes:
        codes: ``[N, K / 2]`` uint8, where byte ``i`` of a group of 32 holds its code ``i`` in the low half and its code
            ``i + 16`` in the high half, each 0 to 15; or ``[N, K]`` int8.
        scales: ``[N, K / group]`` fp16 or fp32.
        minima: of the same shape and dtype; None if all are 0.
        by_kernel: what a kernel keeps with it, by the kernel.
    """

    codes: Tensor
    scales: Tensor
    minima: Tensor | None = None
    by_kernel: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def bits(self) -> int:
        """Of a code."""
        return 4 if self.codes.dtype == torch.uint8 else 8

    @property
    def shape(self) -> tuple[int, int]:
        """``(N, K)``, as of ``torch.nn.Linear``'s weight."""
        return self.codes.shape[0], self.codes.shape[1] * 8 // self.bits

    @property
    def group(self) -> int:
        """How many numbers share a scale."""
        return self.shape[1] // self.scales.shape[1]

    def numbers(self, dtype: torch.dtype = torch.float32, rows: Tensor | slice = slice(None)) -> Tensor:
        """Rows of the matrix, ``[n, K]``: multiplied and added in fp32, then rounded to ``dtype``."""
        codes, scales, minima = (part if part is None else _rows(part, rows) for part in self._parts)
        assert codes is not None and scales is not None
        if self.bits == 4:
            halves = codes.unflatten(1, (-1, GROUP // 2))
            codes = torch.cat([halves & 15, halves >> 4], dim=2).flatten(1)
        found = codes.unflatten(1, (-1, self.group)).float() * scales.float()[:, :, None]
        if minima is not None:
            found += minima.float()[:, :, None]
        numbers: Tensor = found.flatten(1).to(dtype)
        return numbers

    def permuted(self, rows: Tensor) -> PackedMatrix:
        """The same rows in another order."""
        codes, scales, minima = (part if part is None else part[rows] for part in self._parts)
        assert codes is not None and scales is not None
        return PackedMatrix(codes, scales, minima)

    @property
    def _parts(self) -> tuple[Tensor | None, ...]:
        return self.codes, self.scales, self.minima


def _rows(part: Tensor, rows: Tensor | slice) -> Tensor:
    return part[rows] if isinstance(rows, slice) else part.index_select(0, rows)  # which refuses negative ones


def nibbles(codes: Tensor) -> Tensor:
    """Codes of 0 to 15, uint8 ``[N, K]``, two in a byte: as ``PackedMatrix.codes`` has them."""
    halves = codes.unflatten(1, (-1, 2, GROUP // 2))
    both: Tensor = halves[:, :, 0] | halves[:, :, 1] << 4
    return both.flatten(1)


def by_parts(
    x: Tensor,
    matrix: PackedMatrix,
    bias: Tensor | None,
    many: torch.dtype | None,
    numbers: Callable[[torch.dtype, slice], Tensor],
) -> Tensor:
    """``x · Wᵀ + bias`` of ``[..., K]``, multiplied in ``many`` or else in x's dtype.

    Args:
        numbers: gives some rows of W, ``[n, K]``, in a dtype.
    """
    outs, width = matrix.shape
    factor = x if many is None else x.to(many)
    bias = bias if bias is None else bias.to(x.dtype)
    fused = bias if many is None else None
    each = max(1, _NUMBERS // width)
    if outs <= each:
        found = torch.nn.functional.linear(factor, numbers(factor.dtype, slice(0, outs)), fused).to(x.dtype)
    else:
        found = x.new_empty(*x.shape[:-1], outs)
        for first in range(0, outs, each):
            rows = slice(first, min(first + each, outs))
            own = None if fused is None else fused[rows]
            found[..., rows] = torch.nn.functional.linear(factor, numbers(factor.dtype, rows), own)
    return found if bias is None or fused is not None else found.add_(bias)
