"""Bands: how a selection and a position map become attention that a kernel can run.

A band is a set of (query, key) pairs in which the query is rotated once, to ``q_pos(i)``, and the key once, to
``k_pos(j)``; query ``i`` sees the keys ``lo(i) <= j < hi(i)`` of the band. The bands of a method tile its kept keys,
each exactly once. All functions take and return int64 tensors of a row's own indices (padding not counted).

Shapes. The docstrings of this library use one letter for one size:

=========  =============================================================================================
``B``      rows of a batch
``H``      query heads
``Hkv``    key heads; ``H / Hkv`` query heads are the *group* of a key head
``T``      new tokens, or the queries at hand
``N``      stored tokens, the new ones counted in
``D``      size of a head's query or key
``Dv``     size of a head's value
``r``      rotated channels of a head, in ``r / 2`` pairs: cos and sin are ``[..., r / 2]``
``S``      how many choose in a row of the batch: ``H`` heads, ``Hkv`` groups, or 1 for the layer
``M``      candidates that are chosen from, or tokens that a chunk of queries chose
``m``      units that a query chose
``n``      units, such as the chunks of LongHeads, or a part of one of the other sizes
``P``      chunks of queries that choose together
``L``      the trained window, in tokens
``i, j``   index of a query, of a key, in its own row
=========  =============================================================================================

Positions and indices are int64, lengths are in tokens, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longspan.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor


IndexMap = Callable[["Tensor"], "Tensor"]


class KeyMap:
    """Key positions. Compared by value: bands with equal maps share one stored rotation of the keys."""

    def __call__(self, j: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Index(KeyMap):
    """Keys at their own index ``j``."""

    def __call__(self, j: Tensor) -> Tensor:
        return j


@dataclass(frozen=True)
class Modulo(KeyMap):
    """Keys at ``j mod size``."""

    size: int

    def __call__(self, j: Tensor) -> Tensor:
        return j % self.size


@dataclass(frozen=True)
class Grouped(KeyMap):
    """Keys at ``j // size``."""

    size: int

    def __call__(self, j: Tensor) -> Tensor:
        return j // self.size


@dataclass(frozen=True)
class Origin(KeyMap):
    """Every key at 0, that is, unrotated."""

    def __call__(self, j: Tensor) -> Tensor:
        return torch.zeros_like(j)


@dataclass(frozen=True)
class Interval:
    """The keys ``lo(i) <= j < hi(i)`` of each query ``i``; empty where ``hi(i) <= lo(i)``."""

    lo: IndexMap
    hi: IndexMap

    def meet(self, other: Interval) -> Interval:
        return Interval(
            lambda i: torch.maximum(self.lo(i), other.lo(i)),
            lambda i: torch.minimum(self.hi(i), other.hi(i)),
        )


@dataclass(frozen=True)
class Band:
    """One separable piece of a position map; ``keys`` may reach beyond the causal limit, which is applied later."""

    name: str
    q_pos: IndexMap
    k_pos: KeyMap
    keys: Interval


@dataclass(frozen=True)
class Kept:
    """What queries keep whatever they choose: the first ``head`` tokens, and those from ``border(i)`` on.

    Queries choose from the tokens between the two, or leave them out. A selection states it, a position map gives its
    bands.

    Attributes:
        border: the first of the last tokens that query ``i`` keeps; 0 where it keeps everything.
        head: first tokens.
        most: how many tokens a query chooses at most.
        unit: tokens of the units that a query chooses for itself, where they begin at multiples of that; None where
            it chooses tokens, or where the queries of a piece choose together.
        span: the most that the last tokens can be; None where they grow with the text.
        rows: the queries that this is said of; None for all.
    """

    border: IndexMap
    head: int = 0
    most: int = 0
    unit: int | None = None
    span: int | None = None
    rows: Callable[[Tensor], Tensor] | None = None

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """The same as disjoint key ranges of each query."""
        last = Interval(self.border, causal)
        return (Interval(start, lambda i: self.border(i).clamp(max=self.head)), last) if self.head else (last,)

    def chosen(self, i: Tensor) -> Tensor:
        """How many tokens each query chooses: ``most``, or all that there are."""
        return (self.border(i) - self.head).clamp(0, self.most)


def compose(kept: tuple[Interval, ...], bands: tuple[Band, ...]) -> tuple[Band, ...]:
    """Every band of a position map restricted to every interval of a selection."""
    if len(kept) == 1:
        return tuple(Band(b.name, b.q_pos, b.k_pos, b.keys.meet(kept[0])) for b in bands)
    return tuple(
        Band(f"{b.name}/{n}", b.q_pos, b.k_pos, b.keys.meet(part)) for n, part in enumerate(kept) for b in bands
    )


def only(band: Band, rows: Callable[[Tensor], Tensor]) -> Band:
    """The band for the queries where ``rows`` is true, empty for the others."""
    lo, hi = band.keys.lo, band.keys.hi
    keys = Interval(lo, lambda i: torch.where(rows(i), hi(i), lo(i)))
    return Band(band.name, band.q_pos, band.k_pos, keys)


def start(i: Tensor) -> Tensor:
    """The first key."""
    return torch.zeros_like(i)


def causal(i: Tensor) -> Tensor:
    """One past the last key that query ``i`` may see."""
    return i + 1
