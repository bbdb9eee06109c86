"""Chunks chosen per query: LongHeads' selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from longspan.bands import IndexMap
from longspan.deferred import torch
from longspan.kernels.best import best

if TYPE_CHECKING:
    from torch import Tensor

Pick = Literal["best", "lowest", "random"]
Share = Literal["head", "group", "layer"]


@dataclass(frozen=True)
class Chunks:
    """``count`` chunks of ``size`` tokens a query: the first, the ``local`` most recent, and chosen ones between.

    The query's own chunk is the last of the local ones. Only full chunks before the local ones are chosen from.

    Args:
        size: ``l``, tokens of a chunk.
        count: ``k``, how many are kept.
        local: how many of the most recent ones are always kept.
        first: whether the first one is.
        pick: the best by score; the paper's ablations are the lowest and random ones.
        share: what chooses together: every query head by itself, the group of a key head, or the layer.
        seed: decides random picks.
    """

    size: int
    count: int
    local: int
    first: bool = True
    pick: Pick = "best"
    share: Share = "group"
    seed: int = 0

    @property
    def chosen(self) -> int:
        """How many chunks a query chooses."""
        return self.count - self.local - int(self.first)

    @property
    def head(self) -> int:
        """How many first tokens are always kept."""
        return self.size if self.first else 0

    def border(self, start: int, window: int) -> IndexMap:
        """The first token of the local chunks."""
        return lambda i: ((i // self.size - self.local + 1) * self.size).clamp(min=0)

    def runs(self, start: int, stop: int, most: int) -> list[tuple[int, int]]:
        """Queries ``start : stop`` cut into runs of at most ``most``."""
        edges = [*range(start, stop, most), stop]
        return list(zip(edges[:-1], edges[1:], strict=True))

    def candidates(self, stop: int) -> int:
        """How many first chunks the queries before ``stop`` choose from."""
        return (stop - 1) // self.size

    def choose(self, scores: Tensor, rows: Tensor) -> Tensor:
        """The chunks that the queries ``rows`` choose, in ascending order.

        Args:
            scores: ``[B, S, T, n]`` of the first ``n`` chunks.
            rows: ``[T]`` int64, the queries' own indices; each has at least ``chosen`` chunks to choose from.

        Returns:
            ``[B, S, T, chosen]`` int64.
        """
        first = int(self.first)  # of the candidates
        if self.pick == "random":
            scores = self._random(scores.shape, rows).to(scores.device)
        elif self.pick == "lowest":
            scores = -scores
        tie, stops = self.tie(scores.dtype), self.stops(rows)
        return best(scores, self.chosen, tie=tie, last=True, start=first, stops=stops)

    def tie(self, dtype: torch.dtype) -> float:
        """What scores may differ by and be the same, in parts of the largest.

        Repeated text makes scores that differ by their rounding alone, which depends on how the text arrives.
        """
        return 16 * torch.finfo(dtype).eps

    def stops(self, rows: Tensor) -> Tensor:
        """One past the last chunk that each of the queries ``rows`` chooses from."""
        return rows // self.size - self.local + 1

    def _random(self, shape: torch.Size, rows: Tensor) -> Tensor:
        """Numbers that depend on the query, the chunk and the head alone, so that decoding draws what prefill drew."""
        heads, chunks = torch.arange(shape[1]), torch.arange(shape[3])
        x = (rows[None, :, None] * 1_000_003 + heads[:, None, None]) * 1_000_003 + chunks + self.seed * 7_919
        for shift, factor in ((16, 0x45D9F3B), (16, 0x45D9F3B), (16, 1)):
            x = ((x ^ (x >> shift)) * factor) & 0xFFFFFFFF
        return x.double().expand(shape)
