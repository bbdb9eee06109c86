"""The rotation of few tokens in C, in one call."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.kernels import native
from longspan.kernels.native import calls
from longspan.rope import Rope


def why_not(x: Tensor) -> str | None:
    """Why this kernel cannot run here, or None."""
    return native.why_not(x) or (None if x.shape[0] == 1 and x.stride(-1) == 1 else "there are several rows")


def turned(rope: Rope, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    heads, rows, width = x.shape[1:]
    pairs, out = rope.rotated // 2, torch.empty_like(x)
    cos, sin = calls.plain((cos, sin))
    apart = 1 if rope.layout == "interleaved" else pairs
    given = calls.numbers(
        *(x.data_ptr(), out.data_ptr(), cos.data_ptr(), sin.data_ptr()),
        *(*x.stride()[1:3], *out.stride()[1:3]),
        *(rows, width, rope.start, pairs, apart, native.KINDS[x.dtype]),
    )
    native.run("turn", heads, given, x.numel())
    return out
