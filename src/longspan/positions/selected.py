"""Position maps of selected keys: what selecting methods ask of one, and ESA's far position.

A selection keeps the first ``head`` tokens, some units (chunks, blocks or single tokens) that queries chose, and all
tokens from ``border(i)`` on. A map says at which position each part is seen. What is chosen by each query is seen by
``Units``; what is chosen by a piece of queries together, in one gather, by ``Gather``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from longspan.bands import Band, Index, IndexMap, Interval, KeyMap, Origin, causal, start
from longspan.deferred import torch
from longspan.positions.near_far import constant, identity

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Gather:
    """How the queries of a piece see the tokens that they chose together.

    Attributes:
        q_pos: ``[T]`` int64, the queries' positions, one tensor for each run of tokens that are seen alike.
        ends: ``[B, S, len(q_pos)]`` int64, one past the last token of each run; None where there is one run.
        k_pos: ``[M]`` int64, what the gathered keys are turned to, or None if they stay as stored.
    """

    q_pos: tuple[Tensor, ...]
    ends: Tensor | None = None
    k_pos: Tensor | None = None


class SelectedMap(Protocol):
    """A position map of selected keys.

    Attributes:
        turns_gathered: whether gathered keys are turned again, which a normalisation after the rotation rules out.
    """

    turns_gathered: ClassVar[bool]

    @property
    def chosen_keys(self) -> KeyMap:
        """The stored rotation that chosen keys are read from."""
        ...

    def plain(self, window: int) -> tuple[Band, ...]:
        """Every key at its true distance, for the queries ``i < window``."""
        ...

    def kept(self, head: int, chosen: int, border: IndexMap) -> tuple[Band, ...]:
        """The first ``head`` tokens and those from ``border`` on, beside ``chosen`` units; for ``i >= window``."""
        ...


class UnitMap(SelectedMap, Protocol):
    """One for units that each query chose."""

    def units(self, rows: Tensor, units: Tensor, size: int) -> Tensor:
        """Query positions for units ``[B, S, T, m]`` of ``size`` tokens: ``[T, m]`` or ``[B, S, T, m]`` (CPU)."""
        ...


class TokenMap(SelectedMap, Protocol):
    """One for tokens that the queries of a piece chose together."""

    def tokens(self, rows: Tensor, tokens: Tensor, head: int, border: int) -> Gather:
        """How queries ``rows`` ``[T]`` see tokens ``[B, S, M]``, ascending; ``border`` is the piece's."""
        ...


def only(band: Band, rows: Callable[[Tensor], Tensor]) -> Band:
    """The band for the queries where ``rows`` is true, empty for the others."""
    lo, hi = band.keys.lo, band.keys.hi
    keys = Interval(lo, lambda i: torch.where(rows(i), hi(i), lo(i)))
    return Band(band.name, band.q_pos, band.k_pos, keys)


def near(border: IndexMap) -> Band:
    """The tokens from ``border`` on, at their true distance."""
    return Band("near", identity, Index(), Interval(border, causal))


@dataclass(frozen=True)
class FarNear:
    """Local keys at their true distance, all others at ``far``: the query at ``far``, the key unrotated."""

    far: int
    turns_gathered: ClassVar[bool] = False

    @property
    def chosen_keys(self) -> KeyMap:
        return Origin()

    def plain(self, window: int) -> tuple[Band, ...]:
        return (near(start),)

    def kept(self, head: int, chosen: int, border: IndexMap) -> tuple[Band, ...]:
        first = Band("initial", constant(self.far), Origin(), Interval(start, constant(head)))
        return (first, near(border)) if head else (near(border),)

    def units(self, rows: Tensor, units: Tensor, size: int) -> Tensor:
        return torch.full((len(rows), units.shape[-1]), self.far)

    def tokens(self, rows: Tensor, tokens: Tensor, head: int, border: int) -> Gather:
        return Gather((torch.full_like(rows, self.far),))
