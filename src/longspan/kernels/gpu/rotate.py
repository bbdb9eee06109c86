"""Rotations of queries and keys on a GPU, and their channels laid in pairs: one kernel in place of torch's five."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.kernels.gpu import tiles
from longspan.rope.layout import Layout

_CHANNELS = 2048  # of a program


def runs(x: Tensor, *others: Tensor) -> bool:
    """Whether the kernel can run on ``x`` ``[B, H, T, D]`` with cos and sin in fp32 and outputs like ``x``."""
    if x.device.type != "cuda" or x.dim() != 4 or x.stride(-1) != 1:
        return False
    same = all(one.device == x.device and one.stride(-1) == 1 for one in others)
    return same and tiles.unsupported_reason(x) is None


def run(
    x: Tensor,
    angles: tuple[Tensor, Tensor] | None,
    out: Tensor,
    start: int,
    half: int,
    *,
    layouts: tuple[Layout, Layout],
) -> None:
    """Write ``x`` ``[B, H, T, D]`` to ``out``, channels ``start : start + 2 · half`` rotated and laid out anew.

    Args:
        angles: cos and sin in fp32, of any shape that broadcasts to ``[B, H, T, half]``; None if nothing is rotated.
        layouts: of ``x`` and of ``out``; see ``longspan.rope.Rope``.
    """
    from longspan.kernels.gpu import rotate_jit

    batch, heads, tokens, width = x.shape
    if x.numel() == 0:
        return
    cos, sin = (x, x) if angles is None else (one.expand(batch, heads, tokens, half) for one in angles)
    if cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    rows = max(1, min(_CHANNELS // tiles.power(width), tiles.power(tokens, 1)))
    with tiles.on(x.device):
        rotate_jit.rotated[(-(-tokens // rows), heads, batch)](
            x, cos, sin, out, *x.stride()[:3], *cos.stride()[:3], *out.stride()[:3], tokens,
            D=width, DP=tiles.power(width), START=start, HALF=half, HP=tiles.power(half, 1),
            ROTATED=angles is not None, FROM_PAIRS=layouts[0] == "interleaved", TO_PAIRS=layouts[1] == "interleaved",
            R=rows, num_warps=4,
        )  # fmt: skip


def taken(
    x: Tensor, angles: tuple[Tensor, Tensor] | None, out: Tensor, start: int, half: int, layouts: tuple[Layout, Layout]
) -> bool:
    """``run``, or false if the kernel cannot take ``x`` ``[B, H, T, D]``."""
    given = () if angles is None else angles
    if out.dtype != x.dtype or any(one.dtype != torch.float32 for one in given) or not runs(x, *given, out):
        return False
    run(x, angles, out, start, half, layouts=layouts)
    return True
