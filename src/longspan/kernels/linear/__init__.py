"""Products with a packed matrix.

Contract: ``y = x · Wᵀ + bias`` for ``x [T, K]`` and ``W [N, K]`` of a ``PackedMatrix``. Sums are in fp32 or in what
torch's matrix products of x's dtype have; a number of W is rounded to x's dtype where many rows meet it, and not where
few do.
"""

from __future__ import annotations

from torch import Tensor

from longspan.kernels import backends
from longspan.kernels.dispatch import Impl, Implementation, Kernel
from longspan.kernels.linear import compiled, torch_ops
from longspan.kernels.linear.contract import PackedMatrix

__all__ = ["linear"]


def linear(x: Tensor, matrix: PackedMatrix, bias: Tensor | None = None, *, impl: Impl = "auto") -> Tensor:
    """``x · Wᵀ + bias``.

    Args:
        x: ``[T, K]`` fp32, bf16 or fp16.
        matrix: ``[N, K]``, on x's device.
        bias: ``[N]``.
        impl: see ``longspan.kernels.dispatch``.

    Returns:
        ``[T, N]`` in x's dtype.

    Raises:
        TypeError: x has no numbers of a floating type.
        ValueError: the named implementation cannot run here.
    """
    if not x.is_floating_point():
        raise TypeError(f"a packed matrix is multiplied by floating numbers, not {x.dtype}: its weight has codes alone")
    found: Tensor = LINEAR.choose(impl, x.device, x, matrix).run(x, matrix, bias)
    return found


LINEAR = Kernel(
    Implementation(backends.COMPILED, compiled.linear, compiled.unsupported_reason),
    Implementation(backends.TORCH, torch_ops.linear),
)
