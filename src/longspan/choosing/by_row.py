"""The base of selections in which every query chooses for itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from longspan.choosing.base import Choosing
from longspan.choosing.queries import QueryBlock
from longspan.errors import LongspanError
from longspan.kernels.gathered import PerRow
from longspan.positions import ChosenPositionMap


class ByRow(Choosing):
    """Every query chooses units of ``size`` tokens, which begin at multiples of it."""

    by_query_chunk = False

    def scored(self, query: int) -> int:
        """How many units have a score for a query."""
        raise NotImplementedError

    def runs(self, first: int, stop: int, most: int) -> list[tuple[int, int]]:
        edges = [*range(first, stop, most), stop]
        return list(pairwise(edges))

    def see(self, positions: ChosenPositionMap, queries: QueryBlock, r0: int, r1: int, units: Tensor) -> PerRow:
        table = queries.table()
        positions_of, key = queries.shared.positions, (r0, r1, units.shape[-1], queries.q.device)
        at = positions_of.get(key)  # layers share what depends on the queries alone
        if at is None:
            i, kept = torch.arange(r0, r1), self.always(queries.start)
            at = positions.places(i, units.shape[-1], kept)
            follows_order = at is not None
            at = positions.units(i, units, kept) if at is None else at
            check_positions(at, len(table[0]) - (positions.stored_in(kept) - 1) * self.size, positions)
            at = at.to(queries.q.device)
            if follows_order:
                positions_of[key] = at
        at = moved(at, units, self.size, positions.stored_in(self.always()))
        return PerRow(units=units, size=self.size, positions=at, table=table, **queries.gathered(r0, r1))

    def places(self, positions: ChosenPositionMap, i: Tensor) -> Tensor | None:
        return positions.places(i, self.chosen, self.always())

    def choices(
        self, r0: int, r1: int, units: Tensor, scores: Tensor | None, every: bool
    ) -> Iterator[tuple[int, int, Tensor, Tensor | None]]:
        for query in range(r0 if every else r1 - 1, r1):
            t = query - r0
            # Not all queries have the units that the last may choose from.
            yield query, query, units[:, :, t], None if scores is None else scores[:, :, t, : self.scored(query)]


def check_positions(at: Tensor, count: int, positions: ChosenPositionMap) -> None:
    """``ValueError`` if positions ``at``, of any shape, leave a table of ``count``, past which a kernel would read."""
    low, high = (int(x) for x in at.aminmax()) if at.numel() else (0, 0)
    if low < 0 or high >= count:
        raise LongspanError(
            f"{type(positions).__name__} sees chosen keys from positions {low} to {high}, outside of the {count} "
            "positions of the window; its positions are at least 0 and at most its reach"
        )


def moved(at: Tensor, units: Tensor, size: int, block: int) -> Tensor:
    """Positions ``at`` of ``ChosenPositionMap.places`` for ``units`` ``[B, S, T, m]`` that are stored in blocks."""
    return at if block == 1 else at + units % block * size
