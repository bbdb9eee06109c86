"""Dual Chunk Attention's position map (An et al., 2024, Eqs 2-8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longspan.bands import AlwaysKept, Band, Interval, KeyMap, Modulo, causal, start
from longspan.deferred import torch
from longspan.positions.base import ChosenPositionMap, Gather, constant

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Chunked(ChosenPositionMap):
    """Keys at ``j mod size``; queries at one of three positions by how many chunks back the key lies.

    * same chunk: ``i mod size``;
    * previous chunk: ``i mod size + size`` for the first ``local`` queries of a chunk, ``window - 1`` for the others
      (Eq 7);
    * earlier chunks: ``window - 1``.
    """

    size: int
    local: int
    window: int

    @classmethod
    def over(cls, unit: int, window: int) -> Chunked:
        """The map of a window in chunks of about three quarters of it that hold whole units of ``unit`` tokens."""
        size = max(3 * window // 4 // unit, 1) * unit
        size += unit if 2 * size < window else 0  # else rows inside the window would not all be at their true distance
        return cls(size, window - size, window)

    def rel(self, i: Tensor, j: Tensor) -> Tensor:
        back = i // self.size - j // self.size
        earlier = torch.full_like(back, self.window - 1)
        q = torch.where((back == 1) & (i % self.size < self.local), i % self.size + self.size, earlier)
        return torch.where(back == 0, i % self.size, q) - j % self.size

    def everywhere(self) -> tuple[Band, ...]:
        def chunk(i: Tensor) -> Tensor:
            return i // self.size * self.size

        def previous(i: Tensor) -> Tensor:
            return (chunk(i) - self.size).clamp(min=0)

        def successive(i: Tensor) -> Tensor:
            inside = i % self.size
            return torch.where(inside < self.local, inside + self.size, torch.full_like(i, self.window - 1))

        keys = Modulo(self.size)
        return (
            Band("inter", constant(self.window - 1), keys, Interval(start, previous)),
            Band("successive", successive, keys, Interval(previous, chunk)),
            Band("intra", lambda i: i % self.size, keys, Interval(chunk, causal)),
        )

    def reach(self, kept: AlwaysKept) -> int:
        return self.window - 1

    def chosen_keys(self, kept: AlwaysKept) -> KeyMap:
        return Modulo(self.size)

    def places(self, i: Tensor, count: int, kept: AlwaysKept) -> None:
        return None

    def units(self, i: Tensor, units: Tensor, kept: AlwaysKept) -> Tensor:
        j = units.cpu() * (kept.unit or 1)
        return self.rel(i[:, None], j) + j % self.size  # the key itself is stored at j mod size

    def tokens(self, i: Tensor, tokens: Tensor, kept: AlwaysKept) -> Gather:
        chunk = i[:1] // self.size
        # Runs: the chunks before the previous one, the previous one, and the query chunk's own; for each its first key.
        firsts = (torch.zeros_like(chunk), (chunk - 1) * self.size, chunk * self.size)
        edges = torch.cat((*firsts[1:], (chunk + 1) * self.size)).to(tokens.device)
        ends = (tokens[..., None] < edges).sum(dim=-2)
        return Gather(tuple(self.rel(i, j) for j in firsts), ends)
