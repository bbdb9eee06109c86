"""Selections that depend on indices alone: everything, sinks and recent tokens, the query's own chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from longspan.bands import Interval, causal, start
from longspan.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor


class Selection(Protocol):
    """``keep`` states the selection pair by pair; ``intervals`` states the same as disjoint key ranges a query."""

    def keep(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether query ``i`` attends to key ``j`` (bool, broadcast); the causal limit comes on top."""
        ...

    def intervals(self) -> tuple[Interval, ...]: ...


@dataclass(frozen=True)
class Everything:
    """Every key."""

    def keep(self, i: Tensor, j: Tensor) -> Tensor:
        return torch.ones_like(i + j, dtype=torch.bool)

    def intervals(self) -> tuple[Interval, ...]:
        return (Interval(start, causal),)


@dataclass(frozen=True)
class SinksAndRecent:
    """The first ``sinks`` keys and the last ``recent`` ones, the query's own among them."""

    sinks: int
    recent: int

    def keep(self, i: Tensor, j: Tensor) -> Tensor:
        return (j < self.sinks) | (i - j < self.recent)

    def intervals(self) -> tuple[Interval, ...]:
        return (
            Interval(start, lambda i: (i - self.recent + 1).clamp(0, self.sinks)),
            Interval(lambda i: (i - self.recent + 1).clamp(min=0), causal),
        )


@dataclass(frozen=True)
class SameChunk:
    """The keys of the query's own chunk."""

    size: int

    def keep(self, i: Tensor, j: Tensor) -> Tensor:
        return i // self.size == j // self.size

    def intervals(self) -> tuple[Interval, ...]:
        return (Interval(lambda i: i // self.size * self.size, causal),)
