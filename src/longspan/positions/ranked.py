"""Position maps of selected keys: slots and ranks in their order (LongHeads), or one far position (ESA, InfLLM).

A selection keeps the first ``head`` tokens, some units (chunks, blocks or single tokens) that each query chose, and all
tokens from ``border(i)`` on. A map says at which distance each part is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.bands import Band, Index, IndexMap, Interval, KeyMap, Modulo, Origin, causal, start
from longspan.positions.near_far import constant, identity


def only(band: Band, rows: Callable[[Tensor], Tensor]) -> Band:
    """The band for the queries where ``rows`` is true, empty for the others."""
    lo, hi = band.keys.lo, band.keys.hi
    keys = Interval(lo, lambda i: torch.where(rows(i), hi(i), lo(i)))
    return Band(band.name, band.q_pos, band.k_pos, keys)


@dataclass(frozen=True)
class Slots:
    """The kept chunks in their order take slots ``0 ..``: a key in slot ``s`` is at ``s · size + j mod size``.

    Keys are stored once, at ``j mod size``; instead of a key, the query is turned, to ``d · size + i mod size`` for a
    chunk ``d`` slots before its own. (LongHeads, Lu et al., 2024, section 2.3.)
    """

    size: int

    @property
    def chosen_keys(self) -> KeyMap:
        return Modulo(self.size)

    def plain(self, window: int) -> tuple[Band, ...]:
        """Every key at its true distance, for the queries ``i < window``."""
        return tuple(self._back(f"plain-{d}", d) for d in range((window - 1) // self.size + 1))

    def kept(self, head: int, chosen: int, local: int, border: IndexMap) -> tuple[Band, ...]:
        """The first chunk (if ``head``) and the ``local`` last ones, of ``head / size + chosen + local`` in all."""
        bands = [self._back(f"local-{d}", d) for d in reversed(range(local))]
        if head:
            turned = self._turn(chosen + local)
            bands.insert(0, Band("first", turned, Modulo(self.size), Interval(start, constant(self.size))))
        return tuple(bands)

    def chosen(self, rows: Tensor, units: Tensor, local: int) -> Tensor:
        """Query positions ``[T, m]`` for the ``m`` chosen chunks ``[B, S, T, m]`` of queries ``rows`` ``[T]``."""
        m = units.shape[-1]
        slots_back = torch.arange(m - 1 + local, local - 1, -1)
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
class FarNear:
    """Local keys at their true distance, all others at ``far``: the query at ``far``, the key unrotated."""

    far: int

    @property
    def chosen_keys(self) -> KeyMap:
        return Origin()

    def plain(self, window: int) -> tuple[Band, ...]:
        """Every key at its true distance, for the queries ``i < window``."""
        return (Band("plain", identity, Index(), Interval(start, causal)),)

    def kept(self, head: int, chosen: int, local: int, border: IndexMap) -> tuple[Band, ...]:
        """The first ``head`` tokens at ``far``, those from ``border`` on at their true distance."""
        near = Band("near", identity, Index(), Interval(border, causal))
        return (
            (Band("initial", constant(self.far), Origin(), Interval(start, constant(head))), near) if head else (near,)
        )

    def chosen(self, rows: Tensor, units: Tensor, local: int) -> Tensor:
        """Query positions ``[T, m]`` for the ``m`` chosen units ``[B, S, T, m]`` of queries ``rows`` ``[T]``."""
        return torch.full((len(rows), units.shape[-1]), self.far)
