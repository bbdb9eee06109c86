"""Rows of a batch that begin at different slots, as one plan."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.attend.state import Ranges
from longspan.kernels.banded import Plan


def stacked(rows: Sequence[Ranges | None], firsts: Sequence[int], tokens: int) -> Ranges:
    """The keys that the last ``tokens`` slots of unlike rows see, counted in the slots of the batch.

    Args:
        rows: for each row the keys of its last queries, at most ``tokens`` of them, counted from its own first token;
            None if all of them are padding.
        firsts: the slot of each row's first token.

    Returns:
        A plan of ``[B, T]``; a slot of padding has no keys, and so has a row in a band that it does not use.
    """
    rotations = _rotations([() if row is None else row.rotations for row in rows])
    shape = len(rotations), len(rows), tokens
    lo, hi, q_pos = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))
    for b, (row, first) in enumerate(zip(rows, firsts, strict=True)):
        if row is None:
            continue
        skipped, free = tokens - (row.plan.stop - row.plan.start), list(range(len(rotations)))
        for n, rotation in enumerate(row.rotations):
            at = next(slot for slot in free if rotations[slot] == rotation)
            free.remove(at)
            own_lo, own_hi = row.plan.lo[n], row.plan.hi[n]
            some = (own_lo < own_hi) * first
            lo[at, b, skipped:], hi[at, b, skipped:] = own_lo + some, own_hi + some
            q_pos[at, b, skipped:] = row.plan.q_pos[n]
    start = next((row.plan.start for row in rows if row is not None), 0)
    plan = Plan(start, start + tokens, tuple(range(len(rotations))), lo.unbind(), hi.unbind(), q_pos.unbind())
    return Ranges(plan, rotations)


def _rotations(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Of all bands that rows have between them: each rotation as often as the row has it that has it most often."""
    every = sorted({rotation for row in rows for rotation in row})
    return tuple(one for one in every for _ in range(max(row.count(one) for row in rows)))


def filled(rows: Sequence[Tensor | None], tokens: int) -> Tensor:
    """``[B, tokens, ...]`` of rows ``[n, ...]`` with ``n ≤ tokens``, each at the end; zeros before, and where None."""
    like = next(row for row in rows if row is not None)
    out = like.new_zeros(len(rows), tokens, *like.shape[1:])
    for b, row in enumerate(rows):
        if row is not None:
            out[b, tokens - len(row) :] = row
    return out
