"""Kept keys moved together, in their order: chunks into slots (LongHeads), or single tokens into ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from longspan.bands import Band, Index, IndexMap, Interval, KeyMap, Modulo, Origin, start
from longspan.deferred import torch
from longspan.positions.near_far import constant
from longspan.positions.selected import Gather, near

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Slots:
    """The kept chunks in their order take slots ``0 ..``: a key in slot ``s`` is at ``s · size + j mod size``.

    Keys are stored once, at ``j mod size``; instead of a key, the query is turned, to ``d · size + i mod size`` for a
    chunk ``d`` slots before its own. (LongHeads, Lu et al., 2024, section 2.3.)

    Args:
        size: tokens of a chunk.
        local: how many of the most recent chunks are kept anyway, the query's own among them.
    """

    size: int
    local: int
    turns_gathered: ClassVar[bool] = False

    @property
    def chosen_keys(self) -> KeyMap:
        return Modulo(self.size)

    def plain(self, window: int) -> tuple[Band, ...]:
        return tuple(self._back(f"plain-{d}", d) for d in range((window - 1) // self.size + 1))

    def kept(self, head: int, chosen: int, border: IndexMap) -> tuple[Band, ...]:
        bands = [self._back(f"local-{d}", d) for d in reversed(range(self.local))]
        if head:
            turned = self._turn(chosen + self.local)
            bands.insert(0, Band("first", turned, Modulo(self.size), Interval(start, constant(self.size))))
        return tuple(bands)

    def units(self, rows: Tensor, units: Tensor, size: int) -> Tensor:
        m = units.shape[-1]
        slots_back = torch.arange(m - 1 + self.local, self.local - 1, -1)
        return slots_back * self.size + (rows % self.size)[:, None]

    def _turn(self, back: int) -> IndexMap:
        return lambda i: back * self.size + i % self.size

    def _back(self, name: str, back: int) -> Band:
        def chunk(i: Tensor) -> Tensor:
            return (i // self.size - back) * self.size

        return Band(
            name,
            self._turn(back),
            Modulo(self.size),
            Interval(lambda i: chunk(i).clamp(min=0), lambda i: (chunk(i) + self.size).clamp(min=0)),
        )


@dataclass(frozen=True)
class Ranks:
    """The kept tokens of a piece in their order take ranks ``0 ..``: slots of one token.

    Local tokens keep their true distance. What was chosen is turned to its rank once it is gathered, as no rotation
    that is stored beforehand could serve every rank.
    """

    turns_gathered: ClassVar[bool] = True

    @property
    def chosen_keys(self) -> KeyMap:
        return Origin()

    def plain(self, window: int) -> tuple[Band, ...]:
        return (near(start),)

    def kept(self, head: int, chosen: int, border: IndexMap) -> tuple[Band, ...]:
        first = Band("initial", lambda i: head + chosen + i - border(i), Index(), Interval(start, constant(head)))
        return (first, near(border)) if head else (near(border),)

    def tokens(self, rows: Tensor, tokens: Tensor, head: int, border: int) -> Gather:
        count = tokens.shape[-1]
        return Gather((count + rows - border,), k_pos=torch.arange(count))
