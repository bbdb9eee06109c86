"""Selections that depend on indices alone: everything, or sinks and recent tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longspan.bands import AlwaysKept, start
from longspan.deferred import torch
from longspan.selection.base import Selection

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Everything(Selection):
    """Every key."""

    def keep(self, i: Tensor, j: Tensor) -> Tensor:
        return torch.ones_like(i + j, dtype=torch.bool)

    def always(self, first: int = 0) -> AlwaysKept:
        return AlwaysKept(border=start)


@dataclass(frozen=True)
class SinksAndRecent(Selection):
    """The first ``sinks`` keys and the last ``recent`` ones, the query's own among them."""

    sinks: int
    recent: int

    def keep(self, i: Tensor, j: Tensor) -> Tensor:
        return (j < self.sinks) | (i - j < self.recent)

    def always(self, first: int = 0) -> AlwaysKept:
        return AlwaysKept(lambda i: (i - self.recent + 1).clamp(min=0), head=self.sinks, span=self.recent)
