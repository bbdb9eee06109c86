"""Launches of the attention kernels: their constants, and parts of rows that are merged afterwards."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longspan.kernels.gpu import rotate, tiles
from longspan.rope import Rope
from longspan.rope.layout import KERNELS

KERNELS["cuda"] = rotate.taken  # wherever attention runs, rotations know their kernel
_CHANNELS = 2048  # that a program of ``merge_into`` merges at once
_PARTS = 32  # parts that a program of ``merge`` loads at once, of one row or of several


def unsupported_scale(scale: float) -> str | None:
    """Why these kernels cannot multiply scores by ``scale``, or None: the largest one is taken before it."""
    return None if scale > 0 else f"scores are multiplied by {scale:g}, and it needs a positive number"


def constants(dk: int, dv: int, rope: Rope, softcap: float | None, tile: tiles.Tiles, group: int) -> dict[str, Any]:
    """Compile-time constants of kernels with head sizes ``dk`` and ``dv`` and ``group`` heads that share all keys."""
    return {
        "D": dk, "DV": dv, "DP": tiles.power(dk), "DVP": tiles.power(dv),
        "START": rope.start, "INTERLEAVED": rope.layout == "interleaved", "SOFTCAP": float(softcap or 0.0),
        "GROUP": group, "TILE_HEADS": min(group, tile.rows), "R": tile.rows, "K": tile.keys,
        "num_warps": tile.warps, "num_stages": tile.stages,
    }  # fmt: skip


def room(out: Tensor, lse: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    """Where a kernel writes: in place, ``[B, H, T, Dv]`` and ``[B, H, T]``, or ``parts`` of a row side by side."""
    if parts == 1:
        return out, lse
    batch, heads, rows, dv = out.shape
    return lse.new_empty(batch, heads, rows, parts, dv), lse.new_empty(batch, heads, rows, parts)


def merge(parts: Tensor, parts_lse: Tensor, out: Tensor, lse: Tensor) -> None:
    """Merge the parts ``[B, H, T, n, Dv]`` and ``[B, H, T, n]`` of one softmax; nothing if ``room`` gave ``out``."""
    from longspan.kernels.gpu import primitives

    if parts is out:
        return
    batch, heads, rows, dv = out.shape
    total, count = batch * heads * rows, parts.shape[3]
    at_once = min(tiles.power(count, 1), _PARTS)
    each = _PARTS // at_once
    primitives.merge[(-(-total // each),)](
        parts, parts_lse, out, lse, total, count, heads, rows, *out.stride()[:3],
        DV=dv, DVP=tiles.power(dv), R=each, P=at_once,
    )  # fmt: skip


def merge_into(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Merge another part ``[B, H, T, Dv]`` with its log-sum-exp ``[B, H, T]`` into ``out`` and ``lse``, in place.

    Channels are contiguous; log-sum-exps are in fp32.
    """
    from longspan.kernels.gpu import primitives

    if out.numel() == 0:
        return
    batch, heads, tokens, dv = out.shape
    padded = tiles.power(dv)
    rows = max(1, min(_CHANNELS // padded, tiles.power(tokens, 1)))
    with tiles.on(out.device):
        primitives.merge_into[(-(-tokens // rows), heads, batch)](
            out, lse, other, other_lse, *out.stride()[:3], *lse.stride(), *other.stride()[:3], *other_lse.stride(),
            tokens, DV=dv, DVP=padded, R=rows,
        )  # fmt: skip
