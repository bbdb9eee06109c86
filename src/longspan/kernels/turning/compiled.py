"""The rotation of few tokens in C, in one call."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.kernels import native
from longspan.kernels.native import calls
from longspan.kernels.native.structs import ALL
from longspan.rope import Rope

_TURN = ALL["Turn"]


def why_not(x: Tensor) -> str | None:
    """Why this kernel cannot run here, or None."""
    return native.why_not(x) or (None if x.shape[0] == 1 and x.stride(-1) == 1 else "there are several rows")


def turned(rope: Rope, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    calls.expect("x", x, 1, None, None, rope.head_dim)
    heads, rows, width = x.shape[1:]
    pairs, out = rope.rotated // 2, torch.empty_like(x)
    cos, sin = calls.plain((cos, sin))
    apart = 1 if rope.layout == "interleaved" else pairs
    for name, angles in (("cos", cos), ("sin", sin)):
        calls.expect(name, angles, rows, pairs, contiguous=True)
    given = _TURN.pack(
        x=x.data_ptr(),
        to=out.data_ptr(),
        cos=cos.data_ptr(),
        sin=sin.data_ptr(),
        item_step=x.stride(1),
        row_step=x.stride(2),
        to_item=out.stride(1),
        to_row=out.stride(2),
        rows=rows,
        width=width,
        start=rope.start,
        pairs=pairs,
        apart=apart,
        kind=native.KINDS[x.dtype],
    )
    native.run("turn", heads, given, x.numel())
    return out
