"""Blocks chosen by a query chunk: InfLLM's selection."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.calibration import Calibration
from longspan.index import BlockIndex, BlockLayout
from longspan.rope import Rope
from longspan.selection.by_query_chunk import ByQueryChunk
from longspan.selection.cost import LayerSizes, UnitCost, summary_bytes
from longspan.selection.queries import QueryBlock
from longspan.selection.selector import Chosen, Selector


@dataclass(frozen=True)
class Blocks(BlockLayout, ByQueryChunk):
    """The first tokens, ``blocks`` chosen blocks, and the ``local`` tokens before a query chunk together with it.

    The few tokens between the last block that can be chosen and the local ones are kept by nobody until their block is
    whole.
    """

    @property
    def chosen(self) -> int:
        """How many blocks a query chunk chooses."""
        return self.blocks

    @property
    def origin(self) -> int:
        return self.initial

    def selector(self, layer: int, rope: Rope, calibration: Calibration | None) -> Selector:
        return BlockSelector(self)

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
        best = scores.topk(self.blocks, dim=-1).indices.sort(dim=-1).values[..., None]
        of_first = torch.arange(self.initial, self.initial + self.size, device=scores.device)
        return (best * self.size + of_first).flatten(-2)


class BlockSelector(BlockIndex, Selector):
    """Scores a layer's blocks by their representatives."""

    layout: Blocks
    sums_over_ranks = True

    def choose(self, queries: QueryBlock, r0: int, r1: int) -> Chosen:
        scores = self.scores(queries.between(r0, r1), queries.batch, self.layout.candidates(r0), queries.rope)
        return Chosen(self.layout.choose(scores), lambda: scores)
