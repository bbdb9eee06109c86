"""Blocks chosen by a query chunk: InfLLM's selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from longspan.calibration import Calibration
from longspan.index import BlockIndex, BlockLayout
from longspan.kernels.gathered import PerQueryChunk, gather_into
from longspan.rope import Rope
from longspan.selection.by_query_chunk import ByQueryChunk
from longspan.selection.cost import LayerSizes, UnitCost, summary_bytes
from longspan.selection.queries import QueryBlock
from longspan.selection.selector import SCORES_AT_ONCE, Chosen, See, Selector


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
        count = self.layout.candidates(r0)
        scores = self.scores(queries.between(r0, r1), queries.batch, count, queries.rope)
        return Chosen(self.layout.choose(scores), lambda: scores)

    def add_many(self, out: Tensor, lse: Tensor, queries: QueryBlock, runs: Sequence[tuple[int, int]], see: See) -> int:
        """Query chunks that score, choose and attend together; shapes as for ``Selector.add_many``."""
        nothing = torch.empty(queries.q.shape[0], 1, self.layout.chosen * self.layout.size, dtype=torch.int64)
        done = 0
        while len(runs) - done > 1:
            most = self.layout.candidates(runs[-1][0])
            batch = runs[done : done + max(1, SCORES_AT_ONCE // (queries.q.shape[0] * most))]
            r0, r1 = batch[0][0], batch[-1][1]
            job = cast(PerQueryChunk, see(r0, r1, nothing))
            if job.ends is not None or job.key_cos_sin is not None:  # their positions are those of one query chunk
                break
            edges = (*(a - r0 for a, _ in batch), r1 - r0)
            counts = torch.tensor([self.layout.candidates(a) for a, _ in batch])
            own = queries.in_call(r0, r1)
            scores = self.scores(queries.between(r0, r1), queries.batch, int(counts[-1]), queries.rope, edges)
            scores.masked_fill_(torch.arange(scores.shape[-1]) >= counts[:, None], float("-inf"))
            chosen = self.layout.choose(scores)[:, None]
            gather_into(out[:, :, own], lse[:, :, own], replace(job, tokens=chosen, edges=edges))
            done += len(batch)
        return done
