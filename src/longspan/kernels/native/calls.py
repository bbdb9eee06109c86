"""What the C functions are given: parts of the structures of ``job.h`` and others, packed from tensors.

Packed they are bytes, which take a tenth of the time to make that structures of ctypes take. They keep no hold on the
tensors: who calls does.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.kernels.native import KINDS
from longspan.rope import Rope, Turn

_JOB = struct.Struct("=4Q23q2f")


def job(
    q: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    rope: Rope,
    scale: float,
    softcap: float | None,
    sharing: int,
    more: bool,
) -> bytes:
    """``Job``. ``sharing``: how many choose in a row of the batch; ``more``: ``out`` and ``lse`` are a part already."""
    pairs = rope.rotated // 2
    return _JOB.pack(
        q.data_ptr(),
        v.data_ptr(),
        out.data_ptr(),
        lse.data_ptr(),
        *q.stride()[:3],
        *v.stride()[:3],
        *out.stride()[:3],
        *lse.stride(),
        q.shape[1],
        v.shape[1],
        sharing,
        q.shape[2],
        q.shape[3],
        v.shape[3],
        KINDS[q.dtype],
        rope.start,
        pairs,
        1 if rope.layout == "interleaved" else pairs,
        more,
        scale,
        softcap or 0.0,
    )


def keys(tensors: Sequence[Tensor]) -> bytes:
    """``Keys[]``."""
    return struct.pack(f"={'Q3q' * len(tensors)}", *(n for x in tensors for n in (x.data_ptr(), *x.stride()[:3])))


def numbers(*given: int) -> bytes:
    """Addresses and whole numbers."""
    return struct.pack(f"={len(given)}q", *given)


def plain(turn: Turn) -> Turn:
    """cos and sin as C reads them; who calls keeps them."""
    cos, sin = turn
    return cos.float().contiguous(), sin.float().contiguous()


def tables(turns: Sequence[Turn]) -> bytes:
    """``Table[]``."""
    return struct.pack(f"={2 * len(turns)}Q", *(x.data_ptr() for turn in turns for x in turn))


def token(q: Tensor, v: Tensor) -> int:
    """Numbers of a token's key and value of one head."""
    return q.shape[-1] + v.shape[-1]


def room(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """An output ``[B, H, T, Dv]`` with tokens before heads in memory, and a log-sum-exp ``[B, H, T]``."""
    batch, heads, rows, _ = q.shape
    out = q.new_empty(batch, rows, heads, v.shape[-1]).transpose(1, 2)
    return out, torch.empty(batch, heads, rows, dtype=torch.float32, device="cpu")


def side_by_side(x: Tensor) -> Tensor:
    """``x`` itself where a token's channels lie side by side; else a copy."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
