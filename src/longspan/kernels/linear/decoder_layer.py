"""All of a decoder layer but its attention, in two calls of C for few tokens.

Contract, for hidden states ``h [..., K]`` in fp32 and RMS norms ``n``: before attention ``q, k, v`` are
``W · n1(h) + b``; after it ``h' = h + W_o · a + b`` and the result is
``h' + W_down · (silu(W_gate · n2(h')) · (W_up · n2(h')))``, with a bias for each matrix that has one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.kernels import cpu
from longspan.kernels.linear.contract import FEW, PackedMatrix
from longspan.kernels.linear.plan import FewRows, joinable

_FP32 = cpu.KINDS[torch.float32]
_STEPS = [(f"packed_inputs_{n}", f"packed_products_{n}") for n in range(3)]


@dataclass(frozen=True, eq=False)
class Linear:
    """A packed matrix, and its bias ``[N]`` in fp32 or None."""

    matrix: PackedMatrix
    bias: Tensor | None


@dataclass(frozen=True, eq=False)
class RMSNorm:
    """``weight · x / sqrt(mean(x²) + epsilon)``, the weight ``[K]`` in fp32."""

    weight: Tensor
    epsilon: float


class DecoderLayer:
    """The linear part of a decoder layer.

    Args:
        first: the norm before attention.
        projections: of queries, keys and values.
        out: the projection of what was attended.
        second: the norm after attention.
        gated: the gate's projection and the one that it multiplies.
        down: the projection of their product.
        most: the largest query, key or value that is no error.

    Attributes:
        width: ``K``.

    Raises:
        ValueError: matrices that one call cannot multiply.
    """

    def __init__(
        self,
        first: RMSNorm,
        projections: Sequence[Linear],
        out: Linear,
        second: RMSNorm,
        gated: Sequence[Linear],
        down: Linear,
        most: float,
    ) -> None:
        parts = (*projections, out, *gated, down)
        if not all(joinable([x.matrix for x in some]) for some in (projections, [out], gated, [down])):
            raise ValueError("matrices of other groups or widths")
        vectors = [first.weight, second.weight, *(x.bias for x in parts if x.bias is not None)]
        if any(x.dtype != torch.float32 or not x.is_contiguous() or not x.is_cpu for x in vectors):
            raise ValueError("norms and biases of another dtype than fp32")
        self._owners = parts, first, second  # of the memory that C is given addresses in
        self._first = FewRows([x.matrix for x in projections], (first.weight, first.epsilon), most)
        self._after = [
            FewRows([out.matrix]),
            FewRows([x.matrix for x in gated], (second.weight, second.epsilon)),
            FewRows([down.matrix]),
        ]
        self._biases = [
            [0 if x.bias is None else x.bias.data_ptr() for x in some] for some in (projections, [out], gated, [down])
        ]
        self.width, self._inner = self._first.width, self._after[2].width
        self._room = sum(one.room for one in self._after) + self.width + 2 * self._inner
        self._numbers = sum(one.numbers for one in self._after)

    def before(self, hidden: Tensor, dtype: torch.dtype) -> list[Tensor] | None:
        """Queries, keys and values ``[..., N]`` of few rows ``[..., K]`` as ``dtype``; None if one is past ``most``."""
        first, rows = self._first, hidden.numel() // self.width
        inputs = torch.empty(rows * first.room, dtype=torch.float32, device="cpu")
        found = [torch.empty(*hidden.shape[:-1], outs, dtype=dtype, device="cpu") for outs in first.outs]
        beyond, kind = ctypes.c_int64(0), cpu.KINDS[dtype]
        outs = [(out.data_ptr(), bias, 0, kind) for out, bias in zip(found, self._biases[0], strict=True)]
        at = hidden.data_ptr(), inputs.data_ptr(), rows, 0, 0, ctypes.addressof(beyond), _FP32
        cpu.run_steps(self._steps([first], rows), first.packed(at, outs), first.numbers * -(-rows // 4))
        return None if beyond.value else found

    def after(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The layer's result ``[..., K]`` from its hidden states and what was attended, ``[..., N]`` of any dtype."""
        out, gated, down = self._after
        rows, width, inner = hidden.numel() // self.width, self.width, self._inner
        found = torch.empty_like(hidden)
        room = torch.empty(rows * self._room, dtype=torch.float32, device="cpu")
        at, places = room.data_ptr(), []
        for size in (out.room, gated.room, down.room, width, inner, inner):
            places.append(at)
            at += 4 * rows * size
        of_out, of_gated, of_down, middle, gate, up = places
        kind, (_, (bias,), biases, (last,)) = cpu.KINDS[attended.dtype], self._biases
        call = out.packed(
            (attended.data_ptr(), of_out, rows, 0, 0, 0, kind), [(middle, bias, hidden.data_ptr(), _FP32)]
        )
        call += gated.packed(
            (middle, of_gated, rows, 0, 0, 0, _FP32), [(gate, biases[0], 0, _FP32), (up, biases[1], 0, _FP32)]
        )
        call += down.packed((gate, of_down, rows, 0, up, 0, _FP32), [(found.data_ptr(), last, middle, _FP32)])
        cpu.run_steps(self._steps(self._after, rows), call, self._numbers * -(-rows // 4))
        return found

    @staticmethod
    def _steps(calls: Sequence[FewRows], rows: int) -> list[tuple[str, int]]:
        assert rows <= FEW
        return [
            step
            for names, one in zip(_STEPS, calls, strict=False)
            for step in zip(names, (rows, one.items), strict=True)
        ]
