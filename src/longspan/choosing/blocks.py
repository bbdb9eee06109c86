"""Blocks chosen by a query chunk: InfLLM's selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import cast

import torch
from torch import Tensor

from longspan.calibration import Calibration
from longspan.choosing.block_index import BlockIndex, BlockLayout
from longspan.choosing.by_query_chunk import ByQueryChunk
from longspan.choosing.cost import LayerSizes, UnitCost, summary_bytes
from longspan.choosing.queries import QueryBlock
from longspan.choosing.selector import QUERIES_AT_ONCE, Chosen, See, Seen, Selector
from longspan.kernels import cpu
from longspan.kernels.gathered import Impl, PerQueryChunk, gather_into
from longspan.rope import Rope


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

    def add_many(
        self,
        out: Tensor,
        lse: Tensor,
        queries: QueryBlock,
        runs: Sequence[tuple[int, int]],
        see: See,
        seen: Seen,
        impl: Impl = "auto",
    ) -> int:
        """Query chunks that attend together; shapes as for ``Selector.add_many``.

        Each chooses by itself, so that scores that are equal up to rounding decide as they do in a recording.
        """
        done = 0
        if queries.q.device.type == "cpu":
            # Few queries have a kernel of their own, which rounds otherwise than that of many.
            groups = [list(some) for _, some in groupby(runs, key=lambda run: run[1] - run[0] <= cpu.DECODE_ROWS)]
        else:
            most = max(1, QUERIES_AT_ONCE // self.layout.query_chunk)
            groups = [list(runs[n : n + most]) for n in range(0, len(runs), most)]
        for some in groups:
            r0, r1 = some[0][0], some[-1][1]
            first = self.choose(queries, *some[0]).units
            job = cast(PerQueryChunk, see(r0, r1, first))
            if job.ends is not None or job.key_cos_sin is not None:  # their positions are those of one query chunk
                break
            chosen = torch.stack([first, *(self.choose(queries, *run).units for run in some[1:])], dim=2)
            own, edges = queries.in_call(r0, r1), (*(a - r0 for a, _ in some), r1 - r0)
            gather_into(out[:, :, own], lse[:, :, own], replace(job, tokens=chosen, **queries.cut(edges)), impl)
            for n, run in enumerate(some):
                seen(*run, Chosen(chosen[:, :, n], None))
            done += len(some)
        return done
