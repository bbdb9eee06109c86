"""Query chunks that score keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class QueryChunks:
    """``P`` chunks of queries that follow one another and score keys by themselves.

    Attributes:
        edges: where each chunk begins among the queries, and where the last one ends.
        stops: how many of the first keys each chunk meets, at least one.
    """

    edges: Sequence[int]
    stops: Sequence[int]

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.stops) + 1:
            raise ValueError(f"{len(self.stops)} chunks have {len(self.stops) + 1} edges, not {len(self.edges)}")
