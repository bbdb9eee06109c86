"""The top k tokens of each query between the first and the recent ones: LM-Infinite's optional part."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.bands import AlwaysKept, Origin
from longspan.calibration import Calibration
from longspan.choosing.by_row import ByRow
from longspan.choosing.queries import QueryBlock
from longspan.choosing.selector import Chosen, Selector
from longspan.choosing.token_index import summed_queries
from longspan.kernels.scores import dot_scores
from longspan.rope import Rope


@dataclass(frozen=True)
class TopKTokens(ByRow):
    """The ``top_k`` best of the tokens ``initial <= j <= i - recent``, for each query ``i`` and head by itself.

    Args:
        initial: ``S``, first tokens that are always kept.
        recent: ``W``, last tokens that are always kept, the query's own among them.
        top_k: number of tokens between them that a query chooses; all of these if there are fewer.
        score_at: the distance at which scores, the logits of the attention, see their tokens.
        from_layer: the first layer whose queries choose.
    """

    initial: int
    recent: int
    top_k: int
    score_at: int = 0
    from_layer: int = 0

    size = 1
    share = "head"
    dense_queries = 0  # queries keep everything as long as first and recent tokens are all that there are
    scored_keys = Origin()

    @property
    def chosen(self) -> int:
        return self.top_k

    @property
    def scored_from(self) -> int:
        return self.initial

    def always(self, first: int = 0) -> AlwaysKept:
        return AlwaysKept(
            lambda i: (i - self.recent + 1).clamp(min=0), head=self.initial, most=self.top_k, span=self.recent
        )

    @property
    def first_query(self) -> int:
        return self.initial + self.recent

    def chooses_in(self, layer: int) -> bool:
        return layer >= self.from_layer

    def selector(self, layer: int, rope: Rope, calibration: Calibration | None) -> Selector:
        return TopKTokenSelector(self)

    def stops(self, i: Tensor) -> Tensor:
        return i - self.recent + 1

    def scored(self, query: int) -> int:
        return query - self.recent + 1 - self.initial

    def runs(self, first: int, stop: int, most: int) -> list[tuple[int, int]]:
        """Queries ``first : stop`` that choose something, cut so that those of a run choose equally many.

        Args:
            most: the most queries of a run. The first ``top_k - 1`` with a choice, which have fewer than ``top_k``
                tokens to choose from, are runs of their own.
        """
        first = max(first, self.first_query)
        enough = min(max(self.first_query + self.top_k - 1, first), stop)
        return [*((i, i + 1) for i in range(first, enough)), *super().runs(enough, stop, most)]

    def choose(self, scores: Tensor, i: Tensor) -> Tensor:
        """The tokens that the queries of a run choose, in ascending order.

        Args:
            scores: ``[B, H, T, M]`` for the tokens from ``initial`` on; written over.
            i: ``[T]`` int64, the queries' own indices, of one run.

        Returns:
            ``[B, H, T, m]`` int64, counted from the first token; m is ``top_k`` or, in a run of one query, less.
        """
        token = torch.arange(self.initial, self.initial + scores.shape[-1])
        scores = scores.masked_fill_((token > i[:, None] - self.recent).to(scores.device), float("-inf"))
        count = min(self.top_k, self.scored(int(i[0])))
        return scores.topk(count, dim=-1).indices.sort(dim=-1).values + self.initial


class TopKTokenSelector(Selector):
    """Scores tokens by their logits."""

    def __init__(self, selection: TopKTokens) -> None:
        self.selection = selection

    def choose(self, queries: QueryBlock, r0: int, r1: int) -> Chosen:
        selection = self.selection
        assert queries.scored is not None
        keys = queries.scored[:, :, selection.initial : r1 - selection.recent]
        scores = dot_scores(summed_queries(queries.rotated(r0, r1, selection.score_at), keys.shape[1], "head"), keys)
        return Chosen(selection.choose(scores, torch.arange(r0, r1)), lambda: scores)
