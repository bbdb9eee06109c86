"""From bands to rectangles: which keys a block of queries sees, in shapes that a kernel can run without a mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from longspan.kernels.once import give, once

Shape = Literal["full", "causal", "window"]
TILE = 512  # rows of a block whose band slides on both sides; its masks have this height


class _KeyInterval(Protocol):
    @property
    def lo(self) -> Callable[[Tensor], Tensor]: ...
    @property
    def hi(self) -> Callable[[Tensor], Tensor]: ...


class BandLike(Protocol):
    """A band as a plan reads it: positions and key intervals of queries ``[T]``, int64."""

    @property
    def q_pos(self) -> Callable[[Tensor], Tensor]: ...
    @property
    def keys(self) -> _KeyInterval: ...


@dataclass(frozen=True, slots=True)
class KeySpan:
    """Keys ``k0 : k1`` of one band for all rows of a block.

    ``full``: every row sees every key. ``causal``: as many keys as rows, row ``t`` sees keys ``0..t`` of the span.
    ``window``: row ``t`` sees keys ``lo_slope · t ≤ key < first + hi_slope · t`` of the span.
    """

    band: int
    k0: int
    k1: int
    shape: Shape
    first: int = 0
    lo_slope: int = 0
    hi_slope: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """Rows ``r0 : r1`` of the call and their spans; no row of the block is without a key in any of its spans."""

    r0: int
    r1: int
    spans: tuple[KeySpan, ...]


@dataclass(frozen=True)
class Plan:
    """Bands of queries ``start : stop`` of a row, or of ``T = stop - start`` queries of each of ``B`` unlike rows.

    Attributes:
        start, stop: the queries' own indices; those of the first row if rows are unlike.
        bands: the bands that any of these queries uses, by their number among those given; all else is per such band.
        lo, hi: ``[T]`` int64 for each band, ``[B, T]`` of unlike rows: the keys ``lo ≤ j < hi``, causal and clipped
            (equal if there are none).
        q_pos: int64 of the same shape, the position that a band's queries are rotated to.
        derived: what a kernel derives from the plan and reuses in the next layer.
    """

    start: int
    stop: int
    bands: tuple[int, ...]
    lo: tuple[Tensor, ...]
    hi: tuple[Tensor, ...]
    q_pos: tuple[Tensor, ...]
    derived: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def unlike(self) -> int:
        """``B`` if rows have ranges of their own, 0 if all have the same."""
        return len(self.lo[0]) if self.lo and self.lo[0].dim() == 2 else 0

    def row(self, n: int) -> Plan:
        """The plan of one of unlike rows."""
        lo, hi, q_pos = (tuple(x[n] for x in xs) for xs in (self.lo, self.hi, self.q_pos))
        return Plan(self.start, self.stop, self.bands, lo, hi, q_pos)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The same as rectangles, in row order, tiling all rows; computed for the kernel that reads them."""
        return once(self.derived, "blocks", lambda: _blocks(self.lo, self.hi, self.stop - self.start))

    @property
    def reach(self) -> int:
        """The most keys that a query sees."""
        return once(self.derived, "reach", lambda: int((torch.stack(self.hi) - torch.stack(self.lo)).sum(dim=0).max()))

    def ranges(self, device: torch.device) -> Tensor:
        """``[bands, 2, T]`` or ``[B, bands, 2, T]`` int32, ``lo`` and ``hi`` on a device."""

        def derive() -> Tensor:
            return torch.stack([torch.stack(one, dim=-2) for one in zip(self.lo, self.hi, strict=True)], dim=-3)

        return once(self.derived, ("ranges", device), lambda: derive().int().to(device))

    @property
    def farthest(self) -> int:
        """No position of a query is larger."""
        return once(self.derived, "farthest", lambda: int(self.positions(torch.device("cpu")).max()))

    def positions(self, device: torch.device) -> Tensor:
        """``[bands, T]`` or ``[bands, B, T]`` int64, ``q_pos`` on a device."""
        return once(self.derived, ("positions", device), lambda: torch.stack(self.q_pos).to(device))

    def give(self, ranges: Tensor, reach: int, positions: Tensor | None = None, farthest: int = 0) -> None:
        """Set what ``ranges`` and ``positions`` on the device of these, ``reach`` and ``farthest`` would compute."""
        give(self.derived, ("ranges", ranges.device), ranges)
        give(self.derived, "reach", reach)
        if positions is not None:
            give(self.derived, ("positions", positions.device), positions)
            give(self.derived, "farthest", farthest)


def make_plan(bands: Sequence[BandLike], start: int, stop: int) -> Plan:
    """The plan of queries ``start : stop`` (a row's own indices); bands that no query uses are dropped."""
    return _plan(bands, torch.arange(start, stop), start, stop)


def plan_rows(bands: Sequence[BandLike], i: Tensor) -> Plan:
    """The same of unlike rows: of each the queries ``i`` ``[B, T]``, int64 on the CPU, which follow one another."""
    start = int(i[0, 0])
    return _plan(bands, i, start, start + i.shape[1])


def _plan(bands: Sequence[BandLike], i: Tensor, start: int, stop: int) -> Plan:
    used, lows, highs, positions = [], [], [], []
    for n, band in enumerate(bands):
        lo = band.keys.lo(i).clamp(min=0)
        hi = torch.minimum(band.keys.hi(i), i + 1)
        empty = hi <= lo
        if bool(empty.all()):
            continue
        used.append(n)
        lows.append(lo.masked_fill(empty, 0))
        highs.append(hi.masked_fill(empty, 0))
        positions.append(band.q_pos(i))
    return Plan(start, stop, tuple(used), tuple(lows), tuple(highs), tuple(positions))


def _blocks(lows: Sequence[Tensor], highs: Sequence[Tensor], rows: int) -> tuple[Block, ...]:
    cuts = {0, rows}
    for lo, hi in zip(lows, highs, strict=True):
        cuts.update(_breaks(lo, hi))
    edges = sorted(cuts)
    sliding = torch.zeros(rows, dtype=torch.bool)
    for lo in lows:
        sliding[1:] |= (lo[1:] - lo[:-1]) == 1
    blocks = []
    for r0, r1 in pairwise(edges):
        step = TILE if bool(sliding[r0 + 1 : r1].any()) else r1 - r0
        for a in range(r0, r1, step):
            b = min(a + step, r1)
            spans = []
            for band, (lo, hi) in enumerate(zip(lows, highs, strict=True)):
                spans += _spans(band, int(lo[a]), int(hi[a]), int(lo[b - 1]), int(hi[b - 1]), b - a)
            blocks.append(Block(a, b, tuple(spans)))
    return tuple(blocks)


def _breaks(lo: Tensor, hi: Tensor) -> list[int]:
    """Rows at which a new run begins; within a run, ``lo`` and ``hi`` each stay or move by one a row."""
    d_lo, d_hi = lo.diff(), hi.diff()  # entry t is the step from row t to row t + 1
    jump = (d_lo < 0) | (d_lo > 1) | (d_hi < 0) | (d_hi > 1)
    # An empty row may neighbour a full one by a step of one, so emptiness has to break a run by itself.
    empty = hi <= lo
    jump |= empty[1:] != empty[:-1]
    bend = torch.zeros_like(jump)
    bend[1:] = (d_lo[1:] != d_lo[:-1]) | (d_hi[1:] != d_hi[:-1])
    breaks, run = [], 0
    for t in torch.nonzero(jump | bend).flatten().tolist():
        # The step right after a run's first row sets the run's slope, whatever led into it.
        if bool(jump[t]) or t != run:
            run = t + 1
            breaks.append(run)
    return breaks


def _spans(band: int, lo0: int, hi0: int, lo1: int, hi1: int, rows: int) -> list[KeySpan]:
    """The spans of a run from its first and last rows' intervals."""
    if hi0 <= lo0:
        return []
    if lo0 == lo1:
        if hi0 == hi1:
            return [KeySpan(band, lo0, hi0, "full")]
        shared = [KeySpan(band, lo0, hi0 - 1, "full")] if hi0 - 1 > lo0 else []
        return [*shared, KeySpan(band, hi0 - 1, hi0 - 1 + rows, "causal")]
    return [KeySpan(band, lo0, hi1, "window", hi0 - lo0, 1, int(hi1 != hi0))]
