"""Products with packed matrices in C: few rows meet their codes, many their numbers, unpacked part by part."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from longspan.kernels import cpu
from longspan.kernels.linear.contract import FEW, PackedMatrix, by_parts
from longspan.kernels.linear.plan import GROUPS, FewRows, numbers


def unsupported_reason(x: Tensor, matrix: PackedMatrix) -> str | None:
    """Why C cannot compute it for x ``[..., K]``, or None."""
    if not x.is_cpu or not matrix.codes.is_cpu:
        return f"the tensors are on {x.device.type} and {matrix.codes.device.type}"
    if x.dtype not in cpu.KINDS:
        return f"no {x.dtype}"
    if torch.is_grad_enabled() and x.requires_grad:
        return "it does not support gradients"
    if peek_interpreter_stack() is not None:
        return "torch.func transforms the function that calls it"
    if matrix.scales.shape[1] > GROUPS:
        return f"a row has more than {GROUPS} scales"
    return cpu.unavailable_reason()


def linear(x: Tensor, matrix: PackedMatrix, bias: Tensor | None, many: torch.dtype | None) -> Tensor:
    """``[..., K]`` to ``[..., N]``; see ``longspan.kernels.linear``."""
    if x.numel() > FEW * x.shape[-1]:  # faster by a matrix product of the numbers
        return by_parts(x, matrix, bias, many, partial(numbers, matrix))
    call = matrix.by_kernel.get("compiled")
    if call is None:
        call = matrix.by_kernel["compiled"] = FewRows([matrix])
    found: Tensor = call(x, bias)
    return found
