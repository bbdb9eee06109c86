"""Blocks chosen by a query chunk: InfLLM's selection."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.calibration import Calibration
from longspan.index import BlockIndex
from longspan.rope import Rope
from longspan.selection.by_query_chunk import ByQueryChunk
from longspan.selection.cost import LayerSizes, UnitCost, summary_bytes
from longspan.selection.queries import QueryBlock
from longspan.selection.selector import Chosen, Selector


@dataclass(frozen=True)
class Blocks(ByQueryChunk):
    """The first tokens, ``blocks`` chosen blocks, and the ``local`` tokens before a query chunk together with it.

    Block ``b`` is the ``size`` tokens from ``initial + b · size`` on, and can be chosen once none of it is local. The
    few tokens between the last such block and the local ones are kept by nobody until their block is whole.

    Args:
        initial: first tokens that are always kept.
        local: tokens before the query chunk that are always kept.
        size: tokens of a block.
        blocks: how many a query chunk chooses.
        query_chunk: the most queries of a query chunk.
        representatives: how many tokens of a block stand for it; see ``longspan.index.BlockIndex``.
        dense_rows: the first queries, which keep every key: ``L``, or fewer.
    """

    initial: int
    local: int
    size: int
    blocks: int
    query_chunk: int
    representatives: int = 1
    dense_rows: int = 0

    @property
    def chosen(self) -> int:
        """How many blocks a query chunk chooses."""
        return self.blocks

    @property
    def origin(self) -> int:
        return self.initial

    def selector(self, layer: int, rope: Rope, calibration: Calibration | None) -> Selector:
        return BlockSelector(self)

    def candidates(self, chunk_start: int) -> int:
        """How many blocks a query chunk chooses from: the first ones, as long as they end before the local tokens."""
        return max(chunk_start - self.local - self.initial, 0) // self.size

    def unit_cost(self, layer: LayerSizes, reduced: int | None) -> UnitCost:
        entry = layer.kv_heads * summary_bytes(layer)
        return UnitCost(entry, entry, layer.key_dim * layer.kv_heads / self.query_chunk)  # its queries are summed

    def stored_units(self, length: int) -> int:
        return self.candidates(length)

    def choose(self, scores: Tensor) -> Tensor:
        """The tokens of the blocks with the largest scores, in ascending order.

        Args:
            scores: ``[B, S, n]`` of the candidates, at least ``blocks`` of them.

        Returns:
            ``[B, S, blocks · size]`` int64.
        """
        best = scores.topk(self.blocks, dim=-1).indices.sort(dim=-1).values
        return (best[..., None] * self.size + torch.arange(self.size, device=scores.device)).flatten(-2) + self.initial


class BlockSelector(BlockIndex, Selector):
    """Scores a layer's blocks by their representatives."""

    def __init__(self, selection: Blocks) -> None:
        super().__init__(selection, selection.representatives)
        self.selection = selection

    @property
    def sums_over_ranks(self) -> bool:
        return type(self) is BlockSelector

    def choose(self, queries: QueryBlock, r0: int, r1: int) -> Chosen:
        scores = self.scores(queries.between(r0, r1), queries.batch, self.selection.candidates(r0), queries.rope)
        return Chosen(self.selection.choose(scores), lambda: scores)
