"""Calls of C for packed matrices: what is packed once, and what differs from call to call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.kernels import cpu
from longspan.kernels.cpu.structs import ALL
from longspan.kernels.linear.contract import FEW, PackedMatrix

_PACKED, _MATRIX = ALL["Packed"], ALL["Matrix"]
_VARIES = "x", "inputs", "rows", "first", "times", "beyond", "kind"
_OWN = "out", "bias", "residual", "kind"
_CALL, _OUT = _PACKED.first(*_VARIES), _MATRIX.first(*_OWN)
_ROOM = 16  # sums of groups come in whole vectors
GROUPS = 2048  # as MOST_GROUPS in packed.c
_EACH = 16  # rows of a matrix of an item of the work


class FewRows:
    """The products of few rows with matrices of one width, of which those with minima have groups of one size.

    Args:
        norm: ``[K]`` fp32, the weights of an RMS norm of the rows, with its epsilon; None if they come as they are.
        most: the largest product that is no error, if the call asks.

    Attributes:
        outs: ``N`` of each matrix.
        room: fp32 numbers that a row takes while C runs.
        items: of the work of all products.
        numbers: about how many stored numbers are read.
    """

    def __init__(
        self, matrices: Sequence[PackedMatrix], norm: tuple[Tensor, float] | None = None, most: float = 0.0
    ) -> None:
        self.width = width = matrices[0].shape[1]
        assert all(one.shape[1] == width for one in matrices), "matrices of several widths"
        group = next((one.group for one in matrices if one.minima is not None), matrices[0].group)
        self.outs = [one.shape[0] for one in matrices]
        self.room = width + -(-width // group // _ROOM) * _ROOM
        self.items, self.numbers = sum(map(_items, matrices)), sum(self.outs) * width
        self._matrices = [_fixed(one) for one in matrices]
        self._size = _PACKED.size + len(matrices) * _MATRIX.size
        self._fixed = _shared(width, group, len(matrices), self._size, norm, most)
        self._norm = norm
        self._steps = [(("packed_inputs_0", rows), ("packed_products_0", self.items)) for rows in range(FEW + 1)]

    def packed(self, call: tuple[int, ...], outs: Sequence[tuple[int, int, int, int]]) -> bytes:
        """``Packed``: what differs from call to call, of it and of each matrix, beside what does not."""
        parts = [_CALL.pack(*call), self._fixed]
        for fixed, own in zip(self._matrices, outs, strict=True):
            parts += _OUT.pack(*own), fixed
        return b"".join(parts)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """``[..., K]`` to ``[..., N]`` of the only matrix."""
        x, kind, (width,) = x.contiguous(), cpu.KINDS[x.dtype], self.outs
        rows = x.numel() // self.width
        inputs = torch.empty(rows * self.room, dtype=torch.float32, device="cpu")
        found = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device="cpu")
        bias = bias if bias is None else bias.to(x.dtype).float().contiguous()
        out = found.data_ptr(), 0 if bias is None else bias.data_ptr(), 0, kind
        call = self.packed((x.data_ptr(), inputs.data_ptr(), rows, 0, 0, 0, kind), [out])
        # A code takes as long to unpack as a number to read.
        cpu.run_steps(self._steps[rows], call, self.numbers * -(-rows // 4))
        return found


def joinable(matrices: Sequence[PackedMatrix]) -> bool:
    """Whether one call multiplies rows by all of these."""
    widths, groups = {one.shape[1] for one in matrices}, {one.group for one in matrices if one.minima is not None}
    return len(widths) == 1 and len(groups) < 2 and all(one.scales.shape[1] <= GROUPS for one in matrices)


def _items(matrix: PackedMatrix) -> int:
    return -(-matrix.shape[0] // _EACH)


def _shared(
    width: int, group: int, count: int, size: int, norm: tuple[Tensor, float] | None = None, most: float = 0.0
) -> bytes:
    weights, epsilon = (None, 0.0) if norm is None else norm
    address = 0 if weights is None else weights.data_ptr()
    whole = _PACKED.pack(
        **dict.fromkeys(_VARIES, 0), width=width, group=group, each=_EACH, count=count, norm=address, epsilon=epsilon,
        most=most, next=size,
    )  # fmt: skip
    return whole[_CALL.size :]


def _fixed(matrix: PackedMatrix) -> bytes:
    """What is the same in all calls."""
    whole = _MATRIX.pack(
        **dict.fromkeys(_OWN, 0),
        codes=matrix.codes.data_ptr(),
        scales=matrix.scales.data_ptr(),
        minima=0 if matrix.minima is None else matrix.minima.data_ptr(),
        outs=matrix.shape[0],
        group=matrix.group,
        bits=matrix.bits,
        scale_kind=cpu.KINDS[matrix.scales.dtype],
        items=_items(matrix),
    )
    return whole[_OUT.size :]


def numbers(matrix: PackedMatrix, dtype: torch.dtype, rows: slice) -> Tensor:
    """Some rows of the matrix, ``[n, K]``, in a dtype."""
    count, width = rows.stop - rows.start, matrix.shape[1]
    out = torch.empty(count, width, dtype=dtype, device="cpu")
    call = _CALL.pack(0, 0, 0, rows.start, 0, 0, 0) + _shared(width, matrix.group, 1, 0)
    call += _OUT.pack(out.data_ptr(), 0, 0, cpu.KINDS[dtype]) + _fixed(matrix)
    cpu.run("packed_numbers", count, call, count * width)
    return out
