"""Selections in which the queries of a query chunk choose together: ESA's tokens and InfLLM's blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, Self, cast

import torch
from torch import Tensor

from longspan.bands import AlwaysKept
from longspan.choosing.base import Choosing
from longspan.choosing.queries import QueryBlock
from longspan.kernels.gathered import PerQueryChunk
from longspan.positions import ChosenPositionMap


class ByQueryChunk(Choosing):
    """The first tokens, chosen ones, and the ``local`` tokens before a query chunk together with it.

    A query chunk ends at each multiple of ``query_chunk`` and at the end of each call; its queries choose together.

    Attributes:
        initial: first tokens that are always kept.
        local: tokens before the query chunk that are always kept.
        query_chunk: the most queries of a query chunk.
    """

    initial: int
    local: int
    query_chunk: int
    by_query_chunk = True

    def always(self, first: int = 0) -> AlwaysKept:
        def begins(i: Tensor) -> Tensor:
            """Where the query chunk of query ``i`` starts."""
            borders = (i // self.query_chunk * self.query_chunk).clamp(min=first)
            return torch.where(i >= self.dense_queries, borders.clamp(min=self.dense_queries), borders)

        return AlwaysKept(
            lambda i: (begins(i) - self.local).clamp(min=0),
            head=self.initial,
            most=self.chosen * self.size,
            span=self.local + self.query_chunk,
        )

    @property
    def together(self) -> int:
        return self.query_chunk

    def first_together(self, first: int, query: int, dense: bool = False) -> int:
        border = max(query // self.query_chunk * self.query_chunk, first)
        if query < self.dense_queries:
            return border if dense else query
        return max(border, self.dense_queries)

    def alone(self) -> Self:
        single: Self = replace(cast(Any, self), query_chunk=1)  # every selection is a dataclass
        return single

    @property
    def cut_at(self) -> int:
        return self.query_chunk

    @property
    def budget(self) -> int:
        return self.initial + self.chosen * self.size + self.local

    def runs(self, first: int, stop: int, most: int) -> list[tuple[int, int]]:
        """Queries ``first : stop`` cut into query chunks, at multiples of ``query_chunk`` and at ``dense_queries``."""
        size = self.query_chunk
        cuts = {first, stop, *range(first // size * size + size, stop, size)}
        if first < self.dense_queries < stop:
            cuts.add(self.dense_queries)
        return list(pairwise(sorted(cuts)))

    def stops(self, i: Tensor) -> Tensor:
        return i - self.local

    def see(self, positions: ChosenPositionMap, queries: QueryBlock, r0: int, r1: int, units: Tensor) -> PerQueryChunk:
        seen = positions.tokens(torch.arange(r0, r1), units, self.always(queries.start))
        return PerQueryChunk(
            tokens=units,
            cos_sin=tuple(queries.cos_sin(at, "queries", r0, r1, n) for n, at in enumerate(seen.q_pos)),
            ends=seen.ends,
            # Stored at 0 they have the angles' factor already.
            key_cos_sin=None if seen.k_pos is None else queries.cos_sin(seen.k_pos, "keys", scaled=False),
            **queries.gathered(r0, r1),
        )

    def places(self, positions: ChosenPositionMap, i: Tensor) -> Tensor | None:
        count = self.chosen * self.size
        # The tokens' indices do not matter if all are seen from one position.
        seen = positions.tokens(i, torch.zeros(1, 1, count, dtype=torch.int64), self.alone().always())
        alike = seen.ends is None and seen.k_pos is None
        return seen.q_pos[0][:, None].expand(-1, count) if alike else None

    def choices(
        self, r0: int, r1: int, units: Tensor, scores: Tensor | None, every: bool
    ) -> Iterator[tuple[int, int, Tensor, Tensor | None]]:
        yield r0, r1 - 1, (units[..., :: self.size] - self.origin) // self.size, scores
