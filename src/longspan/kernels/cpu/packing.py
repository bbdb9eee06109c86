"""Arguments of the kernels in C: the structures of ``structs.h``, packed from tensors after their shapes are checked.

Packing bytes takes a tenth of the time of ctypes structures. The bytes hold addresses only: the caller keeps the
tensors. The values of indices are checked in C, by ``checks.c``.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from longspan.kernels.cpu import KINDS, LANES, group_size
from longspan.kernels.cpu.structs import ALL
from longspan.rope import CosSin, Rope

JOB, KEYS, TABLE, CODES = ALL["Job"], ALL["Keys"], ALL["Table"], ALL["Codes"]


class CodedTokens(Protocol):
    """Tokens in int8; see ``longspan.memory.quantised.Codes``."""

    codes: Tensor
    scales: Tensor
    rows: Tensor | None


def expect(
    name: str, x: Tensor, *shape: int | None, dtype: torch.dtype | None = None, contiguous: bool = False
) -> None:
    """Raise ``ValueError`` unless C can read ``x``, of any shape that fits ``shape``.

    It must be on the CPU, contiguous in its last axis, or in all axes if ``contiguous``, and have the dtype and the
    shape; None in ``shape`` is any size.
    """
    fits = x.shape == shape
    if not fits:
        fits = x.dim() == len(shape)
        for n, m in zip(shape, x.shape, strict=False):  # plain, since every tensor of a token comes here
            fits = fits and (n is None or n == m)
    if not fits:
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} has the shape {list(x.shape)}, not [{wanted}]")
    if dtype is not None and x.dtype != dtype:
        raise ValueError(f"{name} is {x.dtype}, not {dtype}")
    if not x.is_cpu:
        raise ValueError(f"{name} is on {x.device}, not on the CPU")
    if not (x.is_contiguous() if contiguous else x.dim() == 0 or x.shape[-1] < 2 or x.stride(-1) == 1):
        axes = "" if contiguous else " in its last axis"
        raise ValueError(f"{name} of shape {list(x.shape)} is not contiguous{axes}: strides {list(x.stride())}")


def whole_lanes(*widths: int) -> None:
    """Raise ``ValueError`` unless these numbers of channels fill whole vectors."""
    if any(width % LANES for width in widths):
        raise ValueError(f"head sizes {widths} are not multiples of {LANES}")


def job(
    q: Tensor,
    v: Tensor,
    out: Tensor | None,
    lse: Tensor | None,
    rope: Rope,
    scale: float,
    softcap: float | None,
    sharing: int,
    accumulate: bool,
    before: int = 0,
) -> bytes:
    """``Job``.

    Args:
        q, v: ``[B, H, T, D]`` and ``[B, Hkv, N, Dv]``, a token's channels side by side.
        out, lse: ``[B, H, T, Dv]`` and ``[B, H, T]``; None for a kernel with an output of its own.
        sharing: how many choose in a row of the batch.
        accumulate: whether ``out`` and ``lse`` are a part of the softmax already.
        before: tokens that are counted before those of ``v`` and lie elsewhere.

    Raises:
        ValueError: shapes that do not go together.
    """
    batch, heads, rows, width = q.shape
    expect("v", v, batch, None, None, None, dtype=q.dtype)
    kv_heads, pairs = v.shape[1], rope.rotated // 2
    group_size(heads, sharing)
    if kv_heads < 1 or sharing % kv_heads:
        raise ValueError(f"{sharing} that choose do not read {kv_heads} key heads evenly")
    expect("q", q, None, None, None, rope.head_dim)
    if rope.start < 0 or rope.start + rope.rotated > width:
        raise ValueError(f"channels {rope.start} to {rope.start + rope.rotated} are rotated of a head of {width}")
    whole_lanes(width, v.shape[3])
    if out is not None and lse is not None:
        expect("out", out, batch, heads, rows, v.shape[3], dtype=q.dtype)
        expect("lse", lse[..., None], batch, heads, rows, 1, dtype=torch.float32)  # its rows may lie anywhere
    return JOB.pack(
        q=q.data_ptr(),
        v=_first(v, before),
        out=0 if out is None else out.data_ptr(),
        lse=0 if lse is None else lse.data_ptr(),
        q_step=q.stride()[:3],
        v_step=v.stride()[:3],
        out_step=(0, 0, 0) if out is None else out.stride()[:3],
        lse_step=(0, 0, 0) if lse is None else lse.stride(),
        heads=heads,
        kv_heads=kv_heads,
        sharing=sharing,
        rows=rows,
        dk=width,
        dv=v.shape[3],
        kind=KINDS[q.dtype],
        start=rope.start,
        pairs=pairs,
        pair_stride=1 if rope.layout == "interleaved" else pairs,
        accumulate=accumulate,
        scale=scale,
        softcap=softcap or 0.0,
    )


def keys(x: Tensor, q: Tensor, v: Tensor, before: int = 0) -> bytes:
    """``Keys`` ``[B, Hkv, N, D]`` for values ``[B, Hkv, N, Dv]``, with ``before`` tokens that lie elsewhere."""
    expect("keys", x, *v.shape[:3], q.shape[3], dtype=q.dtype)
    return KEYS.pack(data=_first(x, before), step=x.stride()[:3], count=before + x.shape[2])


def table(angles: CosSin, rope: Rope) -> bytes:
    """``Table`` of cos and sin ``[rows, r / 2]`` from ``layout.fp32_table``; the caller keeps them."""
    cos, sin = angles
    expect("cos", cos, None, rope.rotated // 2, dtype=torch.float32, contiguous=True)
    expect("sin", sin, *cos.shape, dtype=torch.float32, contiguous=True)
    return TABLE.pack(cos=cos.data_ptr(), sin=sin.data_ptr(), rows=cos.shape[0])


def codes(of: CodedTokens | None, heads: int, width: int) -> bytes:
    """``Codes``; of None those of no token.

    Raises:
        ValueError: shapes that do not go together.
    """
    if of is None:
        return bytes(CODES.size)
    expect("codes", of.codes, None, heads, None, width, dtype=torch.int8)
    expect("scales", of.scales, of.codes.shape[0], heads, None, None, dtype=torch.float32)
    count, one = of.codes.shape[2], of.scales.shape[3]
    if one not in (1, width) or of.codes.stride(2) != width or of.scales.stride(2) != one:
        raise ValueError(
            f"codes {list(of.codes.shape)} and scales {list(of.scales.shape)} do not lie token after token"
        )
    if of.rows is None:
        expect("scales", of.scales, None, None, count, None)
    else:
        expect("rows of scales", of.rows, count, dtype=torch.int64, contiguous=True)
    return CODES.pack(
        codes=of.codes.data_ptr(),
        scales=of.scales.data_ptr(),
        rows=0 if of.rows is None else of.rows.data_ptr(),
        code_step=of.codes.stride()[:2],
        scale_step=of.scales.stride()[:2],
        width=width,
        scale_width=one,
        count=count,
    )


def _first(x: Tensor, before: int) -> int:
    """The address that the first of all tokens would have."""
    return x.data_ptr() - before * x.stride(2) * x.element_size()
