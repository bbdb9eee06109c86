"""Products with a packed matrix.

Contract: ``y = x · Wᵀ + bias`` for ``x [..., K]`` and ``W [N, K]`` of a ``PackedMatrix``. Sums are in fp32 or in what
torch's matrix products of x's dtype have; a number of W is rounded to x's dtype where many rows meet it, and not where
few do. Many rows of fp32 may be asked to be multiplied in a narrower dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.kernels import backends
from longspan.kernels.dispatch import Impl, Implementation, Kernel
from longspan.kernels.linear import compiled, torch_ops
from longspan.kernels.linear.contract import FEW, PackedMatrix

__all__ = ["linear"]


def linear(
    x: Tensor,
    matrix: PackedMatrix,
    bias: Tensor | None = None,
    many: torch.dtype | None = None,
    *,
    impl: Impl = "auto",
) -> Tensor:
    """``x · Wᵀ + bias``.

    Args:
        x: ``[..., K]`` fp32, bf16 or fp16.
        matrix: ``[N, K]``, on x's device.
        bias: ``[N]``.
        many: the dtype of factors and products if x is fp32 and has more than ``FEW`` rows; None is fp32.
        impl: see ``longspan.kernels.dispatch``.

    Returns:
        ``[..., N]`` in x's dtype.

    Raises:
        TypeError: x has no numbers of a floating type.
        ValueError: the named implementation cannot run here.
    """
    if not x.is_floating_point():
        raise TypeError(f"a packed matrix is multiplied by floating numbers, not {x.dtype}: its weight has codes alone")
    found: Tensor = LINEAR.choose(impl, x.device, x, matrix).run(
        x, matrix, bias, many if x.dtype == torch.float32 and x.numel() > FEW * x.shape[-1] else None
    )
    return found


LINEAR = Kernel(
    Implementation(backends.COMPILED, compiled.linear, compiled.unsupported_reason),
    Implementation(backends.TORCH, torch_ops.linear),
)
