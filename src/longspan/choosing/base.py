"""Selections whose queries choose keys by looking at them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from longspan.bands import AlwaysKept, KeyMap, start
from longspan.choosing.cost import UnitCost
from longspan.selection import Selection
from longspan.terms import Share

if TYPE_CHECKING:
    from torch import Tensor

    from longspan.calibration import Calibration
    from longspan.choosing.cost import LayerSizes
    from longspan.choosing.queries import QueryBlock
    from longspan.choosing.selector import Selector
    from longspan.kernels.gathered import PerQueryChunk, PerRow
    from longspan.positions import ChosenPositionMap
    from longspan.rope import Rope


class Choosing(Selection):
    """A selection whose queries choose keys by looking at them. The first ``dense_queries`` keep every key.

    Attributes:
        dense_queries: the first queries, which keep every key: ``L``, or fewer if a method says so (``dense``).
        by_query_chunk: whether the queries of a query chunk choose together.
        chosen: how many units they choose.
        size, origin: unit ``u`` is the ``size`` tokens from ``origin + u · size`` on.
        share: which heads choose together.
        scored_keys: the stored rotation that scores are made from; None if the selector keeps what they take.
        in_kernels: whether recorded steps and pages, which have the choice of the library's own classes, have this
            one's. Each class says so for itself, since one that derives from it may choose otherwise.
    """

    dense_queries: int
    by_query_chunk: ClassVar[bool]
    scored_keys: ClassVar[KeyMap | None] = None
    in_kernels: ClassVar[bool] = False
    size: int
    share: Share = "layer"

    @property
    def chosen(self) -> int:
        raise NotImplementedError

    @property
    def origin(self) -> int:
        return 0

    def kept(self, first: int, stop: int) -> tuple[AlwaysKept, ...]:
        always, kept = self.always(first), []
        if first < self.dense_queries:
            kept.append(
                AlwaysKept(start, unit=always.unit, span=self.dense_queries, queries=lambda i: i < self.dense_queries)
            )
        if stop > self.dense_queries:
            kept.append(replace(always, queries=lambda i: i >= self.dense_queries))
        return tuple(kept)

    @property
    def cut_at(self) -> int:
        """At its multiples query chunks end: queries on both sides of one choose apart."""
        return 1

    @property
    def first_query(self) -> int:
        """The first query that chooses."""
        return self.dense_queries

    def chooses_in(self, layer: int) -> bool:
        """Whether the queries of this layer choose."""
        return True

    def selector(self, layer: int, rope: Rope, calibration: Calibration | None) -> Selector:
        """The selector of a layer, for a cache that is empty."""
        raise NotImplementedError

    def runs(self, first: int, stop: int, most: int) -> list[tuple[int, int]]:
        """The queries ``first : stop``, which arrive together, as runs that choose at once.

        Args:
            most: the most queries of a run that each choose for themselves.
        """
        raise NotImplementedError

    def stops(self, i: Tensor) -> Tensor:
        """One past the last candidate of each query ``i`` ``[T]`` that arrives alone: ``[T]``, in units."""
        raise NotImplementedError

    def see(
        self, positions: ChosenPositionMap, queries: QueryBlock, r0: int, r1: int, units: Tensor
    ) -> PerRow | PerQueryChunk:
        """The kernel's job for queries ``r0 : r1`` and the units that they chose.

        Args:
            units: ``[B, S, T, m]`` of queries that choose alone, tokens ``[B, S, M]`` of a query chunk.
        """
        raise NotImplementedError

    def places(self, positions: ChosenPositionMap, i: Tensor) -> Tensor | None:
        """Where queries ``i`` that arrive alone see their units from, ``[T, m]`` or ``[1, m]``.

        None if that depends on what they choose.
        """
        raise NotImplementedError

    def unrecordable_reason(self) -> str | None:
        """Why a token's choice is not the same operations at every length, as a predicate, or None.

        It is none if ``Selector.choose_recorded`` makes it.
        """
        return "selects keys by their content, so its operations depend on the length"

    def choices(
        self, r0: int, r1: int, units: Tensor, scores: Tensor | None, every: bool
    ) -> Iterator[tuple[int, int, Tensor, Tensor | None]]:
        """Choices of queries ``r0 : r1``, apart: first and last query, units ``[B, S, m]``, scores ``[B, S, n]``.

        Args:
            units, scores: of all these queries, as ``Chosen`` has them.
            every: all of them, or the last one alone.
        """
        raise NotImplementedError

    @property
    def scored_from(self) -> int:
        """The unit that the first score is of."""
        return 0

    # The cost of choosing, for ``longspan.doctor``. By default scores are made from the stored keys, head by head.

    def unit_cost(self, layer: LayerSizes, reduced: int | None) -> UnitCost:
        """The cost of each unit that a query chooses from; ``reduced`` is what ``reduced_size`` gives."""
        width = self.size * layer.key_dim
        return UnitCost(0, layer.kv_heads * width * layer.itemsize, layer.heads * width)

    def stored_units(self, length: int) -> int:
        """The units of ``length`` tokens that an index has entries of."""
        return length // self.size

    def reduced_size(self, calibration: Calibration) -> int:
        """``d'``, the size of a calibration's reduced keys that scores are made from."""
        return calibration.reduced
