"""A method that chooses, added as CONTRIBUTING says; the parts of one of the library's lie in a file each.

Those are the method, the selection with its selector, the oracle's statement, a line in ``METHODS`` and variants;
nothing else knows of it. This one is a toy: a query keeps the keys of the largest norm, whatever it asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from longspan.bands import AlwaysKept, Origin
from longspan.calibration import Calibration
from longspan.choosing.by_row import ByRow
from longspan.choosing.queries import QueryBlock
from longspan.choosing.selector import Chosen, Selector
from longspan.methods import METHODS
from longspan.methods.base import Method, require
from longspan.oracle import Inputs, states
from longspan.positions import ChosenPositionMap, FarPosition, InOrder
from longspan.rope import Rope
from support import variants

# The selection with its selector: choosing/largest_keys.py


@dataclass(frozen=True)
class LargestKeys(ByRow):
    """The first tokens, the ``recent`` last ones, and the ``top_k`` between whose keys have the largest norm.

    Args:
        initial, recent, top_k: how many of each; each key head has its own.
        dense_queries: the first queries, which keep every key.
    """

    initial: int
    recent: int
    top_k: int
    dense_queries: int

    size = 1
    scored_keys = Origin()

    @property
    def chosen(self) -> int:
        return self.top_k

    def always(self, first: int = 0) -> AlwaysKept:
        return AlwaysKept(self.stops, head=self.initial, most=self.top_k, span=self.recent)

    def stops(self, i: Tensor) -> Tensor:
        return (i - self.recent + 1).clamp(min=0)

    def scored(self, query: int) -> int:
        return query - self.recent + 1

    def selector(self, layer: int, rope: Rope, calibration: Calibration | None) -> Selector:
        return KeyNorms(self)


class KeyNorms(Selector):
    """Scores tokens by the norm of their keys."""

    def __init__(self, selection: LargestKeys) -> None:
        self.selection = selection

    def choose(self, queries: QueryBlock, r0: int, r1: int) -> Chosen:
        own, i = self.selection, torch.arange(r0, r1)
        norms = queries.scored[:, :, : own.scored(r1 - 1)].double().norm(dim=-1)  # [B, Hkv, M]
        token = torch.arange(norms.shape[-1])
        can = (token >= own.initial) & (token < own.stops(i)[:, None])  # [T, M]
        scores = norms[:, :, None].masked_fill(~can, float("-inf"))
        units = scores.topk(own.top_k, dim=-1).indices.sort(dim=-1).values
        return Chosen(units, lambda: scores)


# The method: methods/largest_keys.py

Remap = Literal["slots", "far"]


@dataclass(frozen=True, kw_only=True)
class LargestNorm(Method):
    """The keys of the largest norm, whatever the query is.

    Args:
        initial, recent, top_k: how many first, last and chosen tokens.
        remap: initial and chosen tokens are moved together in their order (``"slots"``), or seen at one distance.
        far: that distance (default: half of the window).
    """

    name = "largest-norm"
    paper = "none"
    initial: int = 2
    recent: int | None = None
    top_k: int | None = None
    remap: Remap = "slots"
    far: int | None = None

    words = {"remap": Remap}
    selects = True

    def check(self) -> None:
        require("LargestNorm: initial ≥ 0", self.initial >= 0, initial=self.initial)

    def defaults(self, window: int) -> dict[str, Any]:
        sizes = {"recent": max(window // 2, 1), "top_k": max(window // 4, 1)}
        return {**sizes, "far": window // 2} if self.remap == "far" else sizes

    def selection(self, window: int) -> LargestKeys:
        return LargestKeys(self.initial, self.recent, self.top_k, window)

    def positions(self, window: int) -> ChosenPositionMap:
        return InOrder() if self.far is None else FarPosition(self.far)

    def plain_queries(self, window: int) -> int:
        return window


# What the oracle states: oracle/largest_keys.py


@states("LargestKeys")
class StatedLargestKeys:
    @staticmethod
    def chosen(own: Any, text: Inputs) -> Tensor:
        heads, kv_heads, n = text.q.shape[1], text.k.shape[1], text.length
        chosen = torch.zeros(text.q.shape[0], heads, n, n, dtype=torch.bool)
        for b in range(text.q.shape[0]):
            for h in range(heads):
                norms = [float(key.double().norm()) for key in text.k[b, h * kv_heads // heads]]
                for i in range(own.dense_queries, n):
                    middle = sorted(range(own.initial, i - own.recent + 1), key=lambda j: -norms[j])
                    chosen[b, h, i, middle[: own.top_k]] = True
        return chosen

    @staticmethod
    def always(own: Any, n: int) -> tuple[Tensor, Tensor]:
        keep, borders = torch.ones(n, n, dtype=torch.bool).tril(), torch.zeros(n, dtype=torch.int64)
        for i in range(own.dense_queries, n):
            borders[i] = i - own.recent + 1
            keep[i, own.initial : borders[i]] = False
        return keep, borders


# What the tests run it with (tests/support/variants.py), and the line in METHODS (methods/__init__.py)

VARIANTS = [{"initial": 0, "recent": 5, "top_k": 3}, {"initial": 3, "recent": 9, "top_k": 4, "remap": "far", "far": 11}]
IMPOSSIBLE = [("largest-norm", {"initial": -1}, None, "initial ≥ 0")]


@contextmanager
def added() -> Iterator[None]:
    """The method is one of the library's."""
    METHODS[LargestNorm.name], variants.VARIANTS[LargestNorm.name] = LargestNorm, VARIANTS
    variants.IMPOSSIBLE.extend(IMPOSSIBLE)
    try:
        yield
    finally:
        del METHODS[LargestNorm.name], variants.VARIANTS[LargestNorm.name]
        del variants.IMPOSSIBLE[-len(IMPOSSIBLE) :]
