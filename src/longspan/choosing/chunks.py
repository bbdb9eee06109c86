"""Chunks chosen by each query: LongHeads' selection."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.bands import AlwaysKept
from longspan.calibration import Calibration
from longspan.choosing.by_row import ByRow
from longspan.choosing.chunk_index import SUBMEANS, ChunkIndex, bound_scores
from longspan.choosing.cost import LayerSizes, UnitCost, summary_bytes
from longspan.choosing.own import says_itself
from longspan.choosing.queries import QueryBlock
from longspan.choosing.selector import Chosen, Selector
from longspan.kernels.decode import ChosenPositions, ScoreSpec
from longspan.kernels.topk import masked_topk, topk
from longspan.rope import Rope, Table
from longspan.terms import ChunkScore, Share, head_sets


@dataclass(frozen=True)
class Chunks(ByRow):
    """``count`` chunks of ``size`` tokens a query: the first, the ``local`` most recent, and chosen ones between.

    The query's own chunk is the last of the local ones. Only full chunks before the local ones are chosen from.

    Args:
        size: ``l``, tokens of a chunk.
        count: ``k``, how many are kept.
        local: how many of the most recent ones are always kept.
        first: whether the first one is.
        share: what chooses together: every query head by itself, the group of a key head, or the layer.
        score: how a query is held against a chunk; see ``longspan.choosing.chunk_index.ChunkIndex``.
        dense_queries: the first queries, which keep every key: ``L``, or fewer.
    """

    size: int
    count: int
    local: int
    first: bool = True
    share: Share = "group"
    score: ChunkScore = "representation"
    dense_queries: int = 0

    in_kernels = True

    @property
    def chosen(self) -> int:
        """How many chunks a query chooses."""
        return self.count - self.local - int(self.first)

    def always(self, first: int = 0) -> AlwaysKept:
        return AlwaysKept(
            lambda i: ((i // self.size - self.local + 1) * self.size).clamp(min=0),
            head=self.size if self.first else 0,
            most=self.chosen * self.size,
            unit=self.size,
            span=self.local * self.size,
        )

    def selector(self, layer: int, rope: Rope, calibration: Calibration | None) -> Selector:
        return ChunkSelector(self, layer, rope, calibration)

    def candidates(self, stop: int) -> int:
        """How many first chunks are scored for the queries before ``stop``: all before the last query's own chunk."""
        return (stop - 1) // self.size

    def scored(self, query: int) -> int:
        return self.candidates(query + 1)

    def stops(self, i: Tensor) -> Tensor:
        return i // self.size - self.local + 1

    def unit_cost(self, layer: LayerSizes, reduced: int | None) -> UnitCost:
        choosing_heads = layer.heads if self.share == "head" else layer.kv_heads
        if self.score == "token_max":
            width = layer.key_dim if reduced is None else reduced
            entry = layer.kv_heads * self.size * width * layer.itemsize
            return UnitCost(entry, entry, choosing_heads * self.size * width)
        vectors = {"mean": 1, "bounds": 2, "submeans": min(SUBMEANS, self.size)}.get(self.score)
        stored, scored = (layer.heads,) * 2 if vectors is None else (vectors * layer.kv_heads, vectors * choosing_heads)
        entry = stored * summary_bytes(layer)
        return UnitCost(entry, entry, scored * layer.key_dim)

    def reduced_size(self, calibration: Calibration) -> int:
        return calibration.reduced_per_head  # each head is reduced by itself

    def bound_scores(self, q: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Scores by bounds that are kept elsewhere; see ``longspan.choosing.chunk_index.bound_scores``."""
        return bound_scores(q, low, high, self.share)

    def choose(self, scores: Tensor, i: Tensor) -> Tensor:
        """The chunks that the queries ``i`` choose, in ascending order.

        Args:
            scores: ``[B, S, T, n]`` of the first ``n`` chunks.
            i: ``[T]`` int64, the queries' own indices; each has at least ``chosen`` chunks to choose from.

        Returns:
            ``[B, S, T, chosen]`` int64.
        """
        tie = self.tie(scores.dtype)
        return topk(scores, self.chosen, tie=tie, last=True, start=int(self.first), stops=self.stops(i))

    def choose_recorded(self, scores: Tensor, stop: Tensor) -> Tensor:
        """The same of one query by operations that never wait: ``stop`` ``[1]`` int64 is on the scores' device."""
        tie = self.tie(scores.dtype)
        return masked_topk(scores, self.chosen, tie=tie, last=True, start=int(self.first), stops=stop)

    def unrecordable_reason(self) -> str | None:
        if not says_itself(self, "in_kernels"):
            return super().unrecordable_reason()
        if self.score == "token_max":
            return "with score='token_max' scores every token of a chunk, which cannot be recorded; use another score"
        return None

    def tie(self, dtype: torch.dtype) -> float:
        """The difference within which scores tie, in parts of the largest.

        Repeated text makes scores that differ by their rounding alone, which depends on how the text arrives.
        """
        return 16 * torch.finfo(dtype).eps


class ChunkSelector(ChunkIndex, Selector):
    """Scores a layer's chunks by their summaries.

    Under a calibration the score ``token_max`` is that of reduced queries and keys.
    """

    sums_over_ranks = in_kernels = True

    def __init__(self, selection: Chunks, layer: int, rope: Rope, calibration: Calibration | None) -> None:
        reduced = None
        if calibration is not None and selection.score == "token_max":
            maps = calibration.heads[layer]
            reduced = rope.pair(maps.theta_q), rope.pair(maps.theta_k)
        super().__init__(selection.size, selection.score, selection.share, reduced, rope.order)
        self.selection = selection

    def columns(self, stop: int) -> int:
        return self.selection.candidates(stop) * self.per_unit

    def choose(self, queries: QueryBlock, r0: int, r1: int) -> Chosen:
        count, kv_heads = self.selection.candidates(r1), queries.keys.shape[1]
        scores = self.scores(queries.between(r0, r1), queries.batch, count, queries.rope, kv_heads)
        return Chosen(self.selection.choose(scores, torch.arange(r0, r1)), lambda: scores)

    def choose_recorded(self, queries: QueryBlock, stop: Tensor) -> Tensor:
        assert self.entries is not None  # a token that has something to choose from has entries to choose by
        count, kv_heads = self.entries.shape[2] // self.per_unit, queries.keys.shape[1]
        return self.selection.choose_recorded(
            self.scores(queries.q, queries.batch, count, queries.rope, kv_heads), stop
        )

    def in_one_call(self, table: Table) -> bool:
        return says_itself(self, "in_kernels") and self.kind in ("representation", "mean", "bounds")

    def scoring(
        self, rows: slice, padding: int, keys: Tensor | None, heads: int, kv_heads: int, positions: ChosenPositions
    ) -> ScoreSpec | None:
        entries = self.entries
        if entries is None:
            return None
        by_head = self.kind == "representation"  # those of heads that choose together lie side by side
        return ScoreSpec(
            entries=entries[rows],
            signs=2 if self.kind == "bounds" else 1,
            sums=self.share != "head" and not by_head,
            choosing=head_sets(self.selection.share, heads, kv_heads),
            parts=1 if by_head or self.share != "layer" else kv_heads,
            first=int(self.selection.first),
            count=self.selection.chosen,
            tie=self.selection.tie(torch.float32),
            last=True,
            size=self.size,
            positions=positions,
        )
