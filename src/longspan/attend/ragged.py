"""Rows of a batch that begin at different slots, as one plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

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
    """``[B, tokens, ...]`` of rows ``[n, ...]`` with ``n ≤ tokens``, each at the end; zeros before, and for None."""
    like = next(row for row in rows if row is not None)
    out = like.new_zeros(len(rows), tokens, *like.shape[1:])
    for b, row in enumerate(rows):
        if row is not None:
            out[b, tokens - len(row) :] = row
    return out


class Aligned:
    """Prompts of unequal length side by side: row by row the longest first, each from its first token on.

    Queries of one index then see equally many keys in every row, and query chunks have the same borders.

    Args:
        padding: slots at the start of each row that hold no token.
        slots: of the batch.

    Attributes:
        order: the rows of the batch in the new order.
        counts: tokens of each, in that order.
    """

    def __init__(self, padding: Sequence[int], slots: int) -> None:
        self.slots = slots
        self.order = sorted(range(len(padding)), key=lambda row: padding[row])
        self.counts = [max(slots - padding[row], 0) for row in self.order]

    def take(self, x: Tensor) -> Tensor:
        """``[B, H, n, D]`` of ``x`` ``[B, H, slots, D]``, where ``n`` is the longest row; zeros behind shorter ones."""
        out = x.new_zeros(len(self.order), x.shape[1], self.counts[0], *x.shape[3:])
        for n, (row, count) in enumerate(zip(self.order, self.counts, strict=True)):
            out[n, :, :count] = x[row, :, self.slots - count :]
        return out

    def put(self, x: Tensor, to: Tensor) -> None:
        """Write rows ``x`` ``[B, H, n, D]`` as ``take`` gives them to their slots in ``to`` ``[B, H, slots, D]``."""
        for n, (row, count) in enumerate(zip(self.order, self.counts, strict=True)):
            to[row, :, self.slots - count :] = x[n, :, :count]

    def blocks(self, unit: int) -> Iterator[tuple[int, int, slice]]:
        """Queries and the rows that have all of them, as ``(start, stop, rows)``, cut at multiples of ``unit``.

        The queries of a row behind the last multiple are blocks of their own: no other query chooses with them.
        """
        whole = [count // unit * unit for count in self.counts]
        for start, stop in pairwise(sorted({0, *whole})):
            yield start, stop, slice(sum(end > start for end in whole))
        first = 0
        for count, rows in groupby(self.counts):
            last = first + len(list(rows))
            if count % unit:
                yield count // unit * unit, count, slice(first, last)
            first = last
