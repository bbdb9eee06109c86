"""The relative positions of kept keys, pair by pair, for any selection."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longspan.oracle.statements import KeptMask, states


def seen_ranked(keep: Tensor) -> Tensor:
    """``rel`` by rank: the number of kept keys after key ``j`` and up to query ``i``; bool → int64 ``[..., T, N]``."""
    return keep.long().flip(-1).cumsum(dim=-1).flip(-1) - keep.long()


def seen_far(keep: Tensor, borders: Tensor, far: int) -> Tensor:
    """``rel``: ``far`` for keys before the query's border, ``i - j`` for all others.

    Args:
        keep: ``[..., T, N]`` bool.
        borders: ``[T]`` int64.

    Returns:
        ``[..., T, N]`` int64.
    """
    i, j = torch.arange(keep.shape[-2])[:, None], torch.arange(keep.shape[-1])[None, :]
    return torch.where(j < borders[:, None], far, i - j).expand_as(keep)


def seen_in_dual_chunks(keep: Tensor, s: int, w: int, c: int) -> Tensor:
    """``rel`` of Dual Chunk Attention with chunk size ``s``, local window ``w``, window ``c`` (its Eqs 2 to 8).

    ``keep`` is ``[..., T, N]`` bool; the result is ``[..., T, N]`` int64.
    """
    rel = torch.zeros(keep.shape[-2:], dtype=torch.int64)
    for i in range(rel.shape[0]):
        for j in range(i + 1):
            back = i // s - j // s
            if back == 0:
                q = i % s
            elif back == 1 and i % s < w:
                q = i % s + s
            else:
                q = c - 1
            rel[i, j] = q - j % s
    return rel.expand_as(keep)


@states("InOrder")
def stated_in_order(positions: Any, kept: KeptMask) -> Tensor:
    """``seen_ranked`` of the kept keys: ``[..., T, N]`` int64, as of every statement here."""
    return seen_ranked(kept.keep)


@states("FarPosition")
def stated_far(positions: Any, kept: KeptMask) -> Tensor:
    """``seen_far``, at the map's far position."""
    return seen_far(kept.keep, kept.borders, positions.far)


@states("Chunked")
def stated_dual_chunks(positions: Any, kept: KeptMask) -> Tensor:
    """``seen_in_dual_chunks``, of the map's chunks."""
    return seen_in_dual_chunks(kept.keep, positions.size, positions.local, positions.window)


@states("CappedOrFar")
def stated_capped(positions: Any, kept: KeptMask) -> Tensor:
    """Chosen keys at the far position, the others at their distance, at most ``cap``."""
    i, j = torch.arange(kept.keep.shape[-2])[:, None], torch.arange(kept.keep.shape[-1])[None, :]
    return torch.where(kept.chosen, positions.far, (i - j).clamp(max=positions.cap))
