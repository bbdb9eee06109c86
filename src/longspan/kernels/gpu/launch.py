"""Launches of the attention kernels: their constants, and parts of rows that are merged afterwards."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longspan.kernels.gpu import tiles
from longspan.rope import Rope


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
    """Merge the parts ``[B, H, T, n, Dv]`` and ``[B, H, T, n]`` of one softmax; nothing where ``room`` gave ``out``."""
    from longspan.kernels.gpu import primitives

    if parts is out:
        return
    batch, heads, rows, dv = out.shape
    total = batch * heads * rows
    primitives.merge[(-(-total // tiles.SMALLEST),)](
        parts, parts_lse, out, lse, total, parts.shape[3], heads, rows, *out.stride()[:3],
        DV=dv, DVP=tiles.power(dv), R=tiles.SMALLEST,
    )  # fmt: skip
