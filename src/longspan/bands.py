"""Bands: the form of a selection and a position map that attention kernels compute.

A band is a set of (query, key) pairs with one rotation of each query, ``q_pos(i)``, and one of each key, ``k_pos(j)``,
so that ``rel(i, j) = q_pos(i) - k_pos(j)``. In a band, query ``i`` attends to the keys ``lo(i) <= j < hi(i)``. The
bands of a method contain each kept (query, key) pair exactly once. All functions of this module map int64 tensors of
indices to int64 tensors of the same shape. An index counts the tokens of one row of the batch, without padding.

Legend of shapes and symbols, for all docstrings, comments and messages of longspan:

============  ==========================================================================================
``B``         rows of a batch
``H``         query heads of a layer
``Hkv``       key-value heads of a layer; ``H / Hkv`` query heads form the *group* of a key head
``T``         queries: the tokens of a call, or of a part of it
``N``         keys: all tokens so far, including those of the call
``D``         channels of a query or key head
``Dv``        channels of a value head
``r``         rotated channels of a head, in ``r / 2`` pairs; cos and sin are ``[..., r / 2]``
``S``         sets of heads that choose together in a row: ``H`` heads, ``Hkv`` groups, or 1 for the layer
``P``         query chunks, whose queries choose together
``n``         units of a text that a selection chooses: chunks, blocks or tokens
``M``         candidates of a choice, or tokens chosen by a query chunk
``m``         units chosen by a query
``d'``        channels of a reduced key, summed over the heads of a layer (``longspan.calibration``)
``d''``       channels of a reduced key head
``L``         the trained window, in tokens
``i``, ``j``  index of a query and of a key in its row
============  ==========================================================================================

A letter in a paper's notation has its meaning from the docstring of that method. Positions and indices are int64,
lengths are in tokens, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from longspan.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor


IndexMap = Callable[["Tensor"], "Tensor"]


class KeyMap:
    """Positions of keys. Maps compare by value: bands with equal maps share one stored rotation of the keys."""

    def __call__(self, j: Tensor) -> Tensor:
        """Positions of the keys ``j``: int64, ``[N]`` or any shape."""
        raise NotImplementedError


@dataclass(frozen=True)
class Index(KeyMap):
    """Keys at their index ``j``."""

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
    """Every key at 0: unrotated."""

    def __call__(self, j: Tensor) -> Tensor:
        return torch.zeros_like(j)


@dataclass(frozen=True)
class Interval:
    """The keys ``lo(i) <= j < hi(i)`` of each query ``i``; empty if ``hi(i) <= lo(i)``."""

    lo: IndexMap
    hi: IndexMap

    def meet(self, other: Interval) -> Interval:
        return Interval(
            lambda i: torch.maximum(self.lo(i), other.lo(i)), lambda i: torch.minimum(self.hi(i), other.hi(i))
        )


@dataclass(frozen=True)
class Band:
    """A part of a position map with ``rel(i, j) = q_pos(i) - k_pos(j)`` for the keys in ``keys``.

    ``keys`` may exceed the causal limit, which is applied later.
    """

    name: str
    q_pos: IndexMap
    k_pos: KeyMap
    keys: Interval


@dataclass(frozen=True)
class AlwaysKept:
    """The keys that queries keep without a choice: the first ``head`` tokens, and all from ``border(i)`` on.

    Queries choose among the tokens between these, or drop them. A selection returns it, and a position map converts
    it to bands.

    Attributes:
        border: the first of the last tokens that query ``i`` keeps; 0 if it keeps all.
        head: the number of first tokens.
        most: the largest number of tokens that a query chooses.
        unit: the tokens per unit, if each query chooses alone and units begin at multiples of it; None if queries
            choose tokens, or if the queries of a query chunk choose together.
        span: the largest number of last tokens; None if it grows with the text.
        queries: a mask of the queries ``i`` that this applies to; None for all.
    """

    border: IndexMap
    head: int = 0
    most: int = 0
    unit: int | None = None
    span: int | None = None
    queries: Callable[[Tensor], Tensor] | None = None

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """The kept keys as disjoint ranges for each query."""
        last = Interval(self.border, causal)
        return (Interval(start, lambda i: self.border(i).clamp(max=self.head)), last) if self.head else (last,)

    def chosen(self, i: Tensor) -> Tensor:
        """The number of tokens that each query ``i`` ``[T]`` chooses: ``most``, or all candidates if they are fewer."""
        return (self.border(i) - self.head).clamp(0, self.most)


def compose(kept: tuple[Interval, ...], bands: tuple[Band, ...]) -> tuple[Band, ...]:
    """Restrict every band of a position map to every interval of a selection."""
    return tuple(
        replace(b, name=f"{b.name}/{n}" if len(kept) > 1 else b.name, keys=b.keys.meet(part))
        for n, part in enumerate(kept)
        for b in bands
    )


def only(band: Band, queries: Callable[[Tensor], Tensor]) -> Band:
    """The band for the queries ``i`` (any shape) with ``queries(i)`` true; empty for all others."""
    lo, hi = band.keys.lo, band.keys.hi
    keys = Interval(lo, lambda i: torch.where(queries(i), hi(i), lo(i)))
    return replace(band, keys=keys)


def start(i: Tensor) -> Tensor:
    """The first key, 0, for each query ``i`` (any shape)."""
    return torch.zeros_like(i)


def causal(i: Tensor) -> Tensor:
    """One past the last key that each query ``i`` (any shape) may see."""
    return i + 1
