"""Middle tokens chosen by each query: LM-Infinite's optional part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longspan.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Middle:
    """The ``top_k`` best of the tokens ``initial <= j <= i - recent``, for each query ``i`` and head by itself.

    Args:
        initial: ``S``, first tokens that are always kept.
        recent: ``W``, last tokens that are always kept, the query's own among them.
        top_k: how many a query chooses of those between; all of them where there are fewer.
    """

    initial: int
    recent: int
    top_k: int

    size = 1  # tokens of a unit

    @property
    def first_row(self) -> int:
        """The first query with something to choose."""
        return self.initial + self.recent

    def stop(self, row: int) -> int:
        """One past the last token that query ``row`` chooses from; the first one is ``initial``."""
        return row - self.recent + 1

    def runs(self, start: int, stop: int, most: int) -> list[tuple[int, int]]:
        """Queries ``start : stop`` that choose something, cut so that those of a run choose equally many.

        Args:
            most: the most queries of a run. The first ``top_k - 1`` with a choice, which have fewer than ``top_k``
                tokens to choose from, are runs of their own.
        """
        start = max(start, self.first_row)
        enough = min(max(self.first_row + self.top_k - 1, start), max(stop, start))
        edges = [*range(start, enough), *range(enough, stop, most), max(stop, start)]
        return list(zip(edges[:-1], edges[1:], strict=True))

    def choose(self, scores: Tensor, rows: Tensor) -> Tensor:
        """The tokens that the queries of a run choose, in ascending order.

        Args:
            scores: ``[B, H, T, M]`` for the tokens from ``initial`` on; written over.
            rows: ``[T]`` int64, the queries' own indices, of one run.

        Returns:
            ``[B, H, T, m]`` int64, counted from the first token; m is ``top_k`` or, in a run of one query, less.
        """
        token = torch.arange(self.initial, self.initial + scores.shape[-1])
        scores = scores.masked_fill_((token > rows[:, None] - self.recent).to(scores.device), float("-inf"))
        count = min(self.top_k, self.stop(int(rows[0])) - self.initial)
        return scores.topk(count, dim=-1).indices.sort(dim=-1).values + self.initial
