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
    native.run(
        "longspan_turn",
        heads,
        x.numel(),
        x.data_ptr(),
        *x.stride()[1:3],
        out.data_ptr(),
        *out.stride()[1:3],
        cos.data_ptr(),
        sin.data_ptr(),
        rows,
        width,
        rope.start,
        pairs,
        1 if rope.layout == "interleaved" else pairs,
        native.KINDS[x.dtype],
    )
    return out
