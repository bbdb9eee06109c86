"""Query chunks that score keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class QueryChunks:
    """``P`` chunks of queries that follow one another and score keys by themselves.

    Attributes:
        edges: where each chunk begins among the queries, and where the last one ends.
        stops: how many of the first keys each chunk meets, at least one.
        copies: what ``on`` returned, for layers that have the same object.
    """

    edges: Sequence[int]
    stops: Sequence[int]
    copies: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.stops) + 1:
            raise ValueError(f"{len(self.stops)} chunks have {len(self.stops) + 1} edges, not {len(self.edges)}")

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Edges ``[P + 1]`` and stops ``[P]``, int64 on a device: one copy to it, which is not waited for."""
        if device not in self.copies:
            # Each begins at a multiple of sixteen bytes, so that kernels are compiled once for any number of chunks.
            stops, pad = len(self.stops), len(self.stops) % 2
            both = torch.tensor([*self.stops, *[0] * pad, *self.edges], dtype=torch.int64, device="cpu")
            both = both.to(device, non_blocking=True)
            self.copies[device] = both[stops + pad :], both[:stops]
        return self.copies[device]

    def check(self, queries: int, keys: int) -> None:
        """Raise ``ValueError`` unless these are chunks of so many queries that meet so many keys."""
        if any(a >= b for a, b in pairwise(self.edges)):
            raise ValueError(f"the chunks are not in order, with edges {list(self.edges)}")
        if self.edges[0] < 0 or self.edges[-1] > queries:
            raise ValueError(
                f"a chunk lies outside of the queries: chunks go from {self.edges[0]} to {self.edges[-1]}, and there "
                f"are {queries} queries"
            )
        if min(self.stops, default=1) < 1:
            raise ValueError(f"a chunk meets keys outside of the stored ones: {min(self.stops)} of them")
        if max(self.stops, default=0) > keys:
            raise ValueError(f"there are {keys} keys and not {max(self.stops)}")
