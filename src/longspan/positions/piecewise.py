"""Position maps with a near band at the true distance and a far band that is capped, grouped, shifted or re-ranked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longspan.bands import Band, Grouped, Index, IndexMap, Interval, KeyMap, Origin, causal, start
from longspan.deferred import torch
from longspan.positions.base import AtOneDistance, PositionMap, constant, identity, near

if TYPE_CHECKING:
    from torch import Tensor


def near_and_far(within: int, q_far: IndexMap, k_far: KeyMap) -> tuple[Band, ...]:
    """True distance for ``i - j < within``; queries at ``q_far`` and keys at ``k_far`` beyond."""

    def border(i: Tensor) -> Tensor:
        return (i - within + 1).clamp(min=0)

    return Band("far", q_far, k_far, Interval(start, border)), near(border)


@dataclass(frozen=True)
class Unchanged(PositionMap):
    """``i - j``."""

    def rel(self, i: Tensor, j: Tensor) -> Tensor:
        return i - j

    def everywhere(self) -> tuple[Band, ...]:
        return (Band("all", identity, Index(), Interval(start, causal)),)


@dataclass(frozen=True)
class Capped(PositionMap):
    """``min(i - j, cap)``: ReRoPE's and LM-Infinite's map."""

    cap: int

    def rel(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).clamp(max=self.cap)

    def everywhere(self) -> tuple[Band, ...]:
        return near_and_far(self.cap, constant(self.cap), Origin())


@dataclass(frozen=True)
class CappedOrFar(AtOneDistance, Capped):
    """``min(i - j, cap)`` for what is kept whatever is chosen, and ``far`` for what is chosen: LM-Infinite's map."""

    far: int


@dataclass(frozen=True)
class GroupedBeyond(PositionMap):
    """Self-Extend: ``i - j`` within ``near`` tokens, ``i // group - j // group + near - near // group`` beyond."""

    near: int
    group: int

    def rel(self, i: Tensor, j: Tensor) -> Tensor:
        far = i // self.group - j // self.group + self.near - self.near // self.group
        return torch.where(i - j < self.near, i - j, far)

    def everywhere(self) -> tuple[Band, ...]:
        return near_and_far(
            self.near, lambda i: i // self.group + self.near - self.near // self.group, Grouped(self.group)
        )


@dataclass(frozen=True)
class ShiftedBeyond(PositionMap):
    """``i - j`` within ``shift`` tokens, ``i - j - shift + local`` beyond: STRING's map."""

    shift: int
    local: int

    def rel(self, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(i - j < self.shift, i - j, i - j - self.shift + self.local)

    def everywhere(self) -> tuple[Band, ...]:
        # Rows before the shift have no far key; the clamp only keeps their unused position valid.
        return near_and_far(self.shift, lambda i: (i - self.shift + self.local).clamp(min=0), Index())


@dataclass(frozen=True)
class RankedAfterSinks(PositionMap):
    """The rank among the kept keys of ``SinksAndRecent(sinks, recent)``: StreamingLLM's map.

    A recent key keeps its distance; a sink is seen from rank ``min(i, sinks + recent - 1)``.
    """

    sinks: int
    recent: int

    def rel(self, i: Tensor, j: Tensor) -> Tensor:
        last = self.sinks + self.recent - 1
        return torch.where(i - j < self.recent, i - j, i.clamp(max=last) - j)

    def everywhere(self) -> tuple[Band, ...]:
        last = self.sinks + self.recent - 1
        return near_and_far(self.recent, lambda i: i.clamp(max=last), Index())
