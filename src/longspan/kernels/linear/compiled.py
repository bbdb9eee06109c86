"""Products with a packed matrix in C: few rows meet its codes, many its numbers, which are unpacked part by part."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.kernels import cpu
from longspan.kernels.cpu.structs import ALL
from longspan.kernels.linear.contract import FEW, PackedMatrix, by_parts

_PACKED = ALL["Packed"]
_VARIES = "x", "out", "bias", "inputs", "rows", "first"
_CALL = _PACKED.first(*_VARIES)
_ROOM = 16  # sums of groups come in whole vectors
_GROUPS = 2048  # as MOST_GROUPS in packed.c
_EACH = 16  # rows of the matrix of an item of the work


def unsupported_reason(x: Tensor, matrix: PackedMatrix) -> str | None:
    """Why C cannot compute it for x ``[T, K]``, or None."""
    if not x.is_cpu or not matrix.codes.is_cpu:
        return f"the tensors are on {x.device.type} and {matrix.codes.device.type}"
    if x.dtype not in cpu.KINDS:
        return f"no {x.dtype}"
    if torch.is_grad_enabled() and x.requires_grad:
        return "it does not support gradients"
    if matrix.scales.shape[1] > _GROUPS:
        return f"a row has more than {_GROUPS} scales"
    return cpu.unavailable_reason()


def linear(x: Tensor, matrix: PackedMatrix, bias: Tensor | None, many: torch.dtype | None) -> Tensor:
    """``[T, K]`` to ``[T, N]``; see ``longspan.kernels.linear``."""
    outs, width = matrix.shape
    rows, x = x.shape[0], x.contiguous()
    if rows > FEW:  # faster by a matrix product of the numbers
        return by_parts(x, matrix, bias, many, lambda part, dtype: _numbers(matrix, part, dtype))
    packed = _packed(matrix, x.dtype)
    bias = bias if bias is None else bias.to(x.dtype).contiguous()
    room = -(-matrix.scales.shape[1] // _ROOM) * _ROOM
    out = torch.empty(rows, outs, dtype=x.dtype, device="cpu")
    inputs = torch.empty(rows * (width + room), dtype=torch.float32, device="cpu")
    added = 0 if bias is None else bias.data_ptr()
    call = _CALL.pack(x.data_ptr(), out.data_ptr(), added, inputs.data_ptr(), rows, 0) + packed
    numbers = outs * width * -(-rows // 4)  # a code takes as long to unpack as a number to read
    cpu.run_steps((("packed_inputs", rows), ("packed_products", -(-outs // _EACH))), call, numbers)
    return out


def _numbers(matrix: PackedMatrix, rows: slice, dtype: torch.dtype) -> Tensor:
    count, width = rows.stop - rows.start, matrix.shape[1]
    out = torch.empty(count, width, dtype=dtype, device="cpu")
    call = _CALL.pack(0, out.data_ptr(), 0, 0, 0, rows.start) + _packed(matrix, dtype)
    cpu.run("packed_numbers", count, call, count * width)
    return out


def _packed(matrix: PackedMatrix, dtype: torch.dtype) -> bytes:
    """What is the same in all calls, kept with the matrix."""
    found = matrix.by_kernel.get(dtype)
    if found is None:
        outs, width = matrix.shape
        whole = _PACKED.pack(
            **dict.fromkeys(_VARIES, 0),
            codes=matrix.codes.data_ptr(),
            scales=matrix.scales.data_ptr(),
            minima=0 if matrix.minima is None else matrix.minima.data_ptr(),
            outs=outs,
            width=width,
            group=matrix.group,
            bits=matrix.bits,
            kind=cpu.KINDS[dtype],
            scale_kind=cpu.KINDS[matrix.scales.dtype],
            each=_EACH,
        )
        found = matrix.by_kernel[dtype] = whole[_CALL.size :]
    return found
