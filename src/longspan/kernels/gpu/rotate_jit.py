"""Rows rotated, laid in another order of their channels, or both. Importing this module imports Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from longspan.kernels.gpu.primitives import narrowed


@triton.jit
def rotated(
    x_ptr, cos_ptr, sin_ptr, out_ptr,
    x_sb, x_sh, x_st, cos_sb, cos_sh, cos_st, out_sb, out_sh, out_st,
    tokens,
    D: tl.constexpr, DP: tl.constexpr, START: tl.constexpr, HALF: tl.constexpr, HP: tl.constexpr,
    ROTATED: tl.constexpr, FROM_PAIRS: tl.constexpr, TO_PAIRS: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """``R`` rows of a head: channels ``START : START + 2 HALF``, in halves or in pairs, and the others as they are."""
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    t = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    used = (t < tokens)[:, None]
    x_at = x_ptr + (b * x_sb + h * x_sh + t * x_st)[:, None]
    out_at = out_ptr + (b * out_sb + h * out_sh + t * out_st)[:, None]
    k, both = tl.arange(0, HP), tl.arange(0, 2 * HP)
    half = used & (k < HALF)[None, :]
    pairs = used & (both < 2 * HALF)[None, :]
    if FROM_PAIRS:
        own = tl.load(x_at + (START + both)[None, :], mask=pairs, other=0.0)
        x, y = tl.split(tl.reshape(own, [R, HP, 2]))
    else:
        x = tl.load(x_at + (START + k)[None, :], mask=half, other=0.0)
        y = tl.load(x_at + (START + HALF + k)[None, :], mask=half, other=0.0)
    if ROTATED:
        at = (b * cos_sb + h * cos_sh + t * cos_st)[:, None] + k[None, :]
        cos, sin = tl.load(cos_ptr + at, mask=half, other=1.0), tl.load(sin_ptr + at, mask=half, other=0.0)
        wide, other = x.to(tl.float32), y.to(tl.float32)
        x = narrowed(wide * cos - other * sin, out_ptr.dtype.element_ty)
        y = narrowed(other * cos + wide * sin, out_ptr.dtype.element_ty)
    if TO_PAIRS:
        tl.store(out_at + (START + both)[None, :], tl.interleave(x, y), mask=pairs)
    else:
        tl.store(out_at + (START + k)[None, :], x, mask=half)
        tl.store(out_at + (START + HALF + k)[None, :], y, mask=half)
    if 2 * HALF < D:
        c = tl.arange(0, DP)
        rest = used & ((c < START) | ((c >= START + 2 * HALF) & (c < D)))[None, :]
        tl.store(out_at + c[None, :], tl.load(x_at + c[None, :], mask=rest, other=0.0), mask=rest)
