"""What takes the place of ``nn.Linear`` and ``nn.Embedding`` in a model whose matrices are packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from longspan.kernels.linear import linear
from longspan.kernels.linear.contract import FEW, PackedMatrix

_BITS = {torch.float16: torch.int16, torch.float32: torch.int32}
_NUMBERS = {bits: numbers for numbers, bits in _BITS.items()}


class _Packed(nn.Module):
    """A packed matrix as parameters.

    Scales and minima are kept as integers of their bits: ``model.to(dtype)`` rounds whatever is floating.

    Attributes:
        weight: the codes.
    """

    weight: nn.Parameter
    scales: nn.Parameter
    minima: nn.Parameter | None

    def __init__(self, matrix: PackedMatrix) -> None:
        super().__init__()
        self._matrix: tuple[nn.Parameter, PackedMatrix] | None = None
        for name, part in (("weight", matrix.codes), ("scales", matrix.scales), ("minima", matrix.minima)):
            kept = part if part is None or name == "weight" else part.view(_BITS[part.dtype])
            self.register_parameter(name, None if kept is None else nn.Parameter(kept, requires_grad=False))

    @property
    def matrix(self) -> PackedMatrix:
        """The matrix, whose tensors are the parameters."""
        if self._matrix is None or self._matrix[0] is not self.weight:
            scales, minima = (x if x is None else x.data.view(_NUMBERS[x.dtype]) for x in (self.scales, self.minima))
            assert scales is not None
            self._matrix = self.weight, PackedMatrix(self.weight.data, scales, minima)
        return self._matrix[1]

    def share(self, other: _Packed) -> None:
        """Take another one's parameters, so that both have the same ones."""
        self.weight, self.scales, self.minima = other.weight, other.scales, other.minima

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self._matrix = None  # a parameter that moves is the same object with other data
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_matrix": None}  # a copy has tensors of its own


class PackedLinear(_Packed):
    """``y = x · Wᵀ + bias`` with a packed W; see ``longspan.kernels.linear``.

    Args:
        matrix: ``[out_features, in_features]``.
        bias: ``[out_features]``, in the dtype of the inputs.

    Attributes:
        many: what more than 16 tokens of a row in fp32 are multiplied in; None is fp32. Single tokens of many rows are
            not, so that each is as it would be alone.
    """

    bias: nn.Parameter | None

    def __init__(self, matrix: PackedMatrix, bias: nn.Parameter | None = None) -> None:
        super().__init__(matrix)
        self.out_features, self.in_features = matrix.shape
        self.register_parameter("bias", bias)
        self.many: torch.dtype | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Of ``[..., K]``: ``[..., N]`` in the same dtype."""
        many = self.many if x.shape[-2:-1] > (FEW,) else None
        found = linear(x.reshape(-1, self.in_features), self.matrix, self.bias, many)
        return found.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """Its sizes and the bits of its codes."""
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}, bits={self.matrix.bits}"


@contextmanager
def unrounded(model: nn.Module) -> Iterator[None]:
    """Many rows are multiplied in the model's own dtype inside."""
    narrow = [(x, x.many) for x in model.modules() if isinstance(x, PackedLinear) and x.many is not None]
    for module, _ in narrow:
        module.many = None
    try:
        yield
    finally:
        for module, many in narrow:
            module.many = many


class PackedEmbedding(_Packed):
    """Rows of a packed matrix by token id.

    Args:
        matrix: ``[num_embeddings, embedding_dim]``.
        dtype: of the rows.
    """

    def __init__(self, matrix: PackedMatrix, dtype: torch.dtype, padding_idx: int | None = None) -> None:
        super().__init__(matrix)
        self.num_embeddings, self.embedding_dim = matrix.shape
        self.padding_idx = padding_idx
        # A parameter of no numbers follows ``model.to(dtype)``, and says the model's dtype if no other one does.
        self.like = nn.Parameter(torch.empty(0, dtype=dtype, device=matrix.codes.device), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Of ids ``[B, T]``: ``[B, T, embedding_dim]``."""
        return self.matrix.numbers(self.like.dtype, ids.flatten()).view(*ids.shape, self.embedding_dim)

    def extra_repr(self) -> str:
        """Its sizes and the bits of its codes."""
        return f"{self.num_embeddings}, {self.embedding_dim}, bits={self.matrix.bits}"


def packed_module(module: nn.Module, matrix: PackedMatrix, dtype: torch.dtype) -> PackedLinear | PackedEmbedding:
    """What takes the place of a linear or an embedding module."""
    if isinstance(module, nn.Embedding):
        return PackedEmbedding(matrix, dtype, module.padding_idx)
    assert isinstance(module, nn.Linear)
    return PackedLinear(matrix, module.bias)
