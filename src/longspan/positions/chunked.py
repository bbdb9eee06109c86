"""Dual Chunk Attention's position map (An et al., 2024, Eqs 2-8)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.bands import Band, Interval, Modulo, causal, start
from longspan.positions.near_far import constant


@dataclass(frozen=True)
class Chunked:
    """Keys at ``j mod size``; queries at one of three positions by how many chunks back the key lies.

    * same chunk: ``i mod size``;
    * previous chunk: ``i mod size + size`` for the first ``local`` queries of a chunk, ``window - 1`` for the others
      (Eq 7); with ``local=None`` the previous chunk counts as an earlier one;
    * earlier chunks: ``window - 1``.
    """

    size: int
    local: int | None
    window: int

    def rel(self, i: Tensor, j: Tensor) -> Tensor:
        back = i // self.size - j // self.size
        earlier = torch.full_like(back, self.window - 1)
        q = torch.where(back == 0, i % self.size, earlier)
        if self.local is not None:
            q = torch.where((back == 1) & (i % self.size < self.local), i % self.size + self.size, q)
        return q - j % self.size

    def bands(self) -> tuple[Band, ...]:
        def chunk(i: Tensor) -> Tensor:
            return i // self.size * self.size

        def previous(i: Tensor) -> Tensor:
            return (chunk(i) - self.size).clamp(min=0)

        def successive(i: Tensor) -> Tensor:
            inside = i % self.size
            return torch.where(inside < (self.local or 0), inside + self.size, torch.full_like(i, self.window - 1))

        keys = Modulo(self.size)
        intra = Band("intra", lambda i: i % self.size, keys, Interval(chunk, causal))
        if self.local is None:
            return Band("inter", constant(self.window - 1), keys, Interval(start, chunk)), intra
        return (
            Band("inter", constant(self.window - 1), keys, Interval(start, previous)),
            Band("successive", successive, keys, Interval(previous, chunk)),
            intra,
        )
