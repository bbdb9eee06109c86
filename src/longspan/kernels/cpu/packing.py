"""Arguments of the kernels in C: the structures of ``structs.h``, packed from tensors after their shapes are checked.

Packing bytes takes a tenth of the time of ctypes structures. The bytes hold addresses only: the caller keeps the
tensors. The values of indices are checked in C, by ``checks.c``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.kernels.cpu.library import KINDS, LANES, group_size
from longspan.kernels.cpu.structs import ALL
from longspan.rope import CosSin, Rope

JOB, KEYS, TABLE, _TOKEN_SCORES = ALL["Job"], ALL["Keys"], ALL["Table"], ALL["TokenScores"]


def expect(
    name: str, x: Tensor, *shape: int | None, dtype: torch.dtype | None = None, contiguous: bool = False
) -> None:
    """Raise ``ValueError`` unless C can read ``x``, of any shape that fits ``shape``.

    It must be on the CPU, contiguous in its last axis, or in all axes if ``contiguous``, and have the dtype and the
    shape; None in ``shape`` is any size.
    """
    if x.dim() != len(shape) or any(n is not None and n != m for n, m in zip(shape, x.shape, strict=True)):
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
) -> bytes:
    """``Job``.

    Args:
        q, v: ``[B, H, T, D]`` and ``[B, Hkv, N, Dv]``, a token's channels side by side.
        out, lse: ``[B, H, T, Dv]`` and ``[B, H, T]``; None for a kernel with an output of its own.
        sharing: how many choose in a row of the batch.
        accumulate: whether ``out`` and ``lse`` are a part of the softmax already.

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
        v=v.data_ptr(),
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


def keys(x: Tensor, q: Tensor, v: Tensor) -> bytes:
    """``Keys`` ``[B, Hkv, N, D]`` for values ``[B, Hkv, N, Dv]``."""
    expect("keys", x, *v.shape[:3], q.shape[3], dtype=q.dtype)
    return KEYS.pack(data=x.data_ptr(), step=x.stride()[:3], count=x.shape[2])


def fp32_table(angles: CosSin) -> CosSin:
    """cos and sin ``[rows, r / 2]`` as C reads them; the caller keeps them."""
    cos, sin = angles
    return cos.float().contiguous(), sin.float().contiguous()


def table(angles: CosSin, rope: Rope) -> bytes:
    """``Table`` of cos and sin ``[rows, r / 2]`` from ``fp32_table``."""
    cos, sin = angles
    expect("cos", cos, None, rope.rotated // 2, dtype=torch.float32, contiguous=True)
    expect("sin", sin, *cos.shape, dtype=torch.float32, contiguous=True)
    return TABLE.pack(cos=cos.data_ptr(), sin=sin.data_ptr(), rows=cos.shape[0])


def token_scores(
    q: Tensor, keys: Tensor, out: Tensor, heads_per_choice: int, tile: int, edges: Tensor, stops: Tensor
) -> bytes:
    """``TokenScores``.

    Args:
        q: ``[B, A, T, C, D]`` in fp32, contiguous.
        keys: ``[B, Hkv, M, D]``, a token's channels side by side.
        out: ``[B, A / heads_per_choice, P, M']`` in fp32, contiguous; ``M'`` is the largest of ``stops``.
        heads_per_choice: how many consecutive heads choose as one.
        tile: queries whose scores are held together.
        edges, stops: ``[P + 1]`` and ``[P]`` int64: the queries of each chunk, and how many keys they meet.

    Raises:
        ValueError: shapes that do not go together.
    """
    batch, heads, rows, parts, width = q.shape
    expect("q", q, *q.shape, dtype=torch.float32, contiguous=True)
    expect("keys", keys, batch, None, None, width)
    expect("edges", edges, stops.shape[0] + 1, dtype=torch.int64)
    expect("stops", stops, None, dtype=torch.int64)
    expect(
        "scores",
        out,
        batch,
        heads // max(heads_per_choice, 1),
        stops.shape[0],
        None,
        dtype=torch.float32,
        contiguous=True,
    )
    whole_lanes(width)
    kv_heads = keys.shape[1]
    one_by_one = parts == 1 and kv_heads > 0 and heads % kv_heads == 0
    if (
        not (one_by_one or heads_per_choice == 1 and 1 < parts <= kv_heads)
        or heads_per_choice < 1
        or heads % heads_per_choice
    ):
        raise ValueError(
            f"{heads} heads in {parts} parts, {heads_per_choice} per choice, are not scored by {kv_heads} key heads"
        )
    if out.shape[3] > keys.shape[2]:
        raise ValueError(f"there are {keys.shape[2]} keys and not {out.shape[3]}")
    return _TOKEN_SCORES.pack(
        q=q.data_ptr(),
        keys=keys.data_ptr(),
        out=out.data_ptr(),
        edges=edges.data_ptr(),
        stops=stops.data_ptr(),
        step=keys.stride()[:3],
        sharing=heads // heads_per_choice,
        heads=heads_per_choice,
        rows=rows,
        chunks=stops.shape[0],
        parts=parts,
        width=width,
        kv_heads=kv_heads,
        count=out.shape[3],
        tile=tile,
        kind=KINDS[keys.dtype],
    )


def numbers_per_token(q: Tensor, v: Tensor) -> int:
    """``D + Dv`` of ``q`` ``[..., D]`` and ``v`` ``[..., Dv]``: the numbers of a token's key and value of one head."""
    return q.shape[-1] + v.shape[-1]


def empty_output(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """An output ``[B, H, T, Dv]`` with tokens before heads in memory, and a log-sum-exp ``[B, H, T]``."""
    batch, heads, rows, _ = q.shape
    out = q.new_empty(batch, rows, heads, v.shape[-1]).transpose(1, 2)
    return out, torch.empty(batch, heads, rows, dtype=torch.float32, device="cpu")


def unit_stride(x: Tensor) -> Tensor:
    """``x`` ``[..., D]`` if its last axis is contiguous; else a contiguous copy."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
