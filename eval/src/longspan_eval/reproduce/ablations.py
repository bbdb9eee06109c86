"""Methods with the ablations of their papers: what is only there to be measured in a table.

A row is written as for ``longspan eval``, with the further parameters: ``longheads:pick=random``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from longspan.bands import AlwaysKept, Band, start
from longspan.calibration import Calibration
from longspan.choosing.chunks import Chunks, ChunkSelector
from longspan.choosing.queries import QueryBlock, Shared
from longspan.choosing.selector import Chosen, Selector
from longspan.choosing.tokens import Tokens, TokenSelector
from longspan.errors import CalibrationError
from longspan.kernels.scores import dot_scores, relative_scores
from longspan.methods import DCA, ESA, METHODS, LongHeads, Method
from longspan.methods.base import require
from longspan.positions import ChosenPositionMap, Chunked, InOrder, Unchanged
from longspan.rope import Rope
from longspan.selection import Selection
from longspan.terms import head_sets
from longspan_eval import spec
from longspan_eval.spec import MethodSpec

Parts = Literal["intra", "intra+inter", "all"]
Pick = Literal["best", "lowest", "random"]
Prefill = Literal["select", "full"]
Combine = Literal["sum", "max"]


@dataclass(frozen=True)
class SameChunk(Selection):
    """The keys of the query's own chunk of ``size`` tokens."""

    size: int

    def keep(self, i: Tensor, j: Tensor) -> Tensor:
        return i // self.size == j // self.size

    def always(self, first: int = 0) -> AlwaysKept:
        return AlwaysKept(lambda i: i // self.size * self.size, span=self.size)


@dataclass(frozen=True, kw_only=True)
class AblatedDCA(DCA):
    """DCA, and the ablations of its paper.

    Args:
        parts: ``"intra"`` attends only to the chunk of the query; ``"intra+inter"`` sees the previous chunk at the
            positions of earlier chunks; ``"all"`` is DCA.
    """

    parts: Parts = "all"

    def check(self) -> None:
        words = get_args(Parts)
        require(f"DCA: parts is one of {', '.join(words)}", self.parts in words, given=self.parts)
        super().check()

    def selection(self, window: int) -> Selection:
        return SameChunk(self._swc[0]) if self.parts == "intra" else super().selection(window)

    def positions(self, window: int) -> Chunked:
        own = super().positions(window)
        return own if self.parts == "all" else replace(own, local=0)

    def plain_queries(self, window: int) -> int:
        return super().plain_queries(window) if self.parts == "all" else self._swc[0]


@dataclass(frozen=True, kw_only=True)
class AblatedLongHeads(LongHeads):
    """LongHeads, and the ablations of its paper.

    Args:
        pick: ``"best"``, the ``"lowest"``-scored or ``"random"`` chunks.
        fix_layers: all layers take the choice of the first one ("layers fixed").
        prefill: ``"full"``: calls of more than one token attend to everything, under ``angles`` ("w/ NTK init", "w/ PI
            init"); in generation, dynamic angles are then those of the window. A token's output then depends on
            whether it arrives alone, so assisted decoding is not what greedy decoding is.
        seed: decides random picks.
    """

    pick: Pick = "best"
    fix_layers: bool = False
    prefill: Prefill = "select"
    seed: int = 0

    def check(self) -> None:
        for field, words in (("pick", Pick), ("prefill", Prefill)):
            value = getattr(self, field)
            require(f"LongHeads: {field} is one of {', '.join(get_args(words))}", value in get_args(words), given=value)
        slots = self.prefill != "full" or self.remap == "slots"
        require("LongHeads: prefill='full' is for remap='slots'", slots, remap=self.remap)
        super().check()

    def selection(self, window: int) -> Chunks:
        own = super().selection(window)
        if (self.pick, self.fix_layers, self.prefill) == ("best", False, "select"):
            return own
        full = self.prefill == "full"
        return AblatedChunks(**vars(own), pick=self.pick, seed=self.seed, fix_layers=self.fix_layers, full=full)

    def positions(self, window: int) -> ChosenPositionMap:
        return TrueInPrefill() if self.prefill == "full" else super().positions(window)

    def angles_at(self, window: int, tokens: int, total: int) -> int:
        # In generation after a full prefill nothing is seen from farther away than the window.
        return min(total, window) if self.prefill == "full" and tokens == 1 else total

    @property
    def call_dependent(self) -> bool:
        return self.prefill == "full"


@dataclass(frozen=True)
class AblatedChunks(Chunks):
    """Chunks under the ablations of ``AblatedLongHeads``; ``full``: calls of more than one token keep everything."""

    pick: Pick = "best"
    seed: int = 0
    fix_layers: bool = False
    full: bool = False

    def alone(self) -> AblatedChunks:
        return replace(self, full=False)

    def kept(self, first: int, stop: int) -> tuple[AlwaysKept, ...]:
        return (AlwaysKept(start),) if self.full and stop - first > 1 else super().kept(first, stop)

    def runs(self, first: int, stop: int, most: int) -> list[tuple[int, int]]:
        return [] if self.full and stop - first > 1 else super().runs(first, stop, most)

    def selector(self, layer: int, rope: Rope, calibration: Calibration | None) -> Selector:
        kind = ChunkSelector if (self.pick, self.fix_layers) == ("best", False) else AblatedSelector
        return kind(self, layer, rope, calibration)

    def choose(self, scores: Tensor, i: Tensor) -> Tensor:
        return super().choose(-scores if self.pick == "lowest" else scores, i)

    def draw(self, heads: int, rows: Tensor, layer: int) -> Tensor:
        """Random chunks ``[heads, T, chosen]``: by query, head and layer alone, so that decoding draws as prefill."""
        chunks, seed = torch.arange(self.candidates(int(rows[-1]) + 1)), self.seed + 1_009 * layer
        x = (rows[None, :, None] * 1_000_003 + torch.arange(heads)[:, None, None]) * 1_000_003 + chunks + seed * 7_919
        for shift, factor in ((16, 0x45D9F3B), (16, 0x45D9F3B), (16, 1)):
            x = ((x ^ (x >> shift)) * factor) & 0xFFFFFFFF
        return super().choose(x.double()[None], rows)[0]


class AblatedSelector(ChunkSelector):
    """Chooses as ``AblatedChunks`` says."""

    selection: AblatedChunks
    _first: WeakKeyDictionary[Shared, dict[tuple[str, int], tuple[int, Tensor]]] = WeakKeyDictionary()

    def choose(self, queries: QueryBlock, r0: int, r1: int) -> Chosen:
        rows = queries.batch if isinstance(queries.batch, slice) else tuple(queries.batch.tolist())
        fixed, here = self._first.setdefault(queries.shared, {}), (str(rows), r0)
        if self.selection.fix_layers and here in fixed and fixed[here][0] != queries.layer:
            return Chosen(fixed[here][1].to(queries.q.device), None)
        if self.selection.pick == "random":
            heads = head_sets(self.selection.share, queries.q.shape[1], queries.keys.shape[1])
            units = self.selection.draw(heads, torch.arange(r0, r1), queries.layer)
            chosen = Chosen(units.expand(queries.q.shape[0], -1, -1, -1).to(queries.q.device), None)
        else:
            chosen = super().choose(queries, r0, r1)
        fixed[here] = queries.layer, chosen.units
        return chosen


class TrueInPrefill(InOrder):
    """Kept keys in their order; if all are kept, each is seen at its true distance."""

    def bands(self, kept: AlwaysKept) -> tuple[Band, ...]:
        return Unchanged().bands(kept) if kept.span is None else super().bands(kept)


@dataclass(frozen=True, kw_only=True)
class AblatedESA(ESA):
    """ESA, and an ablation: scores of heads that choose together become one by their ``"sum"``, or by the ``"max"``."""

    combine: Combine = "sum"

    def check(self) -> None:
        words = get_args(Combine)
        require(f"ESA: combine is one of {', '.join(words)}", self.combine in words, given=self.combine)
        super().check()

    def check_calibration(self, calibration: Calibration | None) -> None:
        super().check_calibration(calibration)
        if calibration is not None and self.combine == "max":
            raise CalibrationError("reduced scores are sums over heads; leave calibration out for combine='max'")

    def selection(self, window: int) -> Tokens:
        own = super().selection(window)
        return own if self.combine == "sum" or self.share == "head" else LargestTokens(**vars(own))


@dataclass(frozen=True)
class LargestTokens(Tokens):
    """Tokens of which the largest score of the heads that choose together counts."""

    combine = "max"

    def selector(self, layer: int, rope: Rope, calibration: Calibration | None) -> Selector:
        return LargestSelector(self)


class LargestSelector(TokenSelector):
    """The selector of ``LargestTokens``."""

    def token_scores(self, low: int, high: int, queries: QueryBlock, r0: int, r1: int) -> Tensor:
        assert queries.scored is not None
        q, keys = self.rotated(queries, r0, r1), queries.scored[:, :, low:high]
        sets, kv_heads = head_sets(self.selection.share, q.shape[1], keys.shape[1]), keys.shape[1]
        members = q.unflatten(1, (sets, -1, 1)).transpose(3, 4).unbind(2)
        theirs = [keys if sets > 1 else keys[:, n * kv_heads // len(members), None] for n in range(len(members))]
        # One by one: the scores of all heads at once would take more memory than the cache.
        return reduce(torch.maximum, map(dot_scores, members, theirs))

    def _decided(self, low: int, high: int, queries: QueryBlock, r0: int, r1: int) -> Tensor:
        return relative_scores(self.token_scores(low, high, queries, r0, r1))

    add_many = Selector.add_many  # none, since those that run together are scored by sums


ABLATIONS: dict[str, type[Method]] = {"dca": AblatedDCA, "longheads": AblatedLongHeads, "esa": AblatedESA}


def parse_spec(text: str) -> MethodSpec:
    """As ``longspan_eval.spec.parse_spec``, with the parameters of ablations."""
    return spec.parse_spec(text, METHODS | ABLATIONS)
