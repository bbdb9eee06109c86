"""Bands: how a selection and a position map become attention that a kernel can run.

A band is a set of (query, key) pairs in which the query is rotated once, to ``q_pos(i)``, and the key once, to
``k_pos(j)``; query ``i`` sees the keys ``lo(i) <= j < hi(i)`` of the band. The bands of a method tile its kept keys,
each exactly once. All functions take and return int64 tensors of a row's own indices (padding not counted).
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


def compose(kept: tuple[Interval, ...], bands: tuple[Band, ...]) -> tuple[Band, ...]:
    """Every band of a position map restricted to every interval of a selection."""
    if len(kept) == 1:
        return tuple(Band(b.name, b.q_pos, b.k_pos, b.keys.meet(kept[0])) for b in bands)
    return tuple(
        Band(f"{b.name}/{n}", b.q_pos, b.k_pos, b.keys.meet(part)) for n, part in enumerate(kept) for b in bands
    )


def start(i: Tensor) -> Tensor:
    """The first key."""
    return torch.zeros_like(i)


def causal(i: Tensor) -> Tensor:
    """One past the last key that query ``i`` may see."""
    return i + 1
