"""The queries of one layer and call as a selector is given them, and what the layers of one forward share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.scores import QueryChunks
from longspan.rope import CosSin, Rope, cos_sin


@dataclass(eq=False)
class Shared:
    """What a forward's layers share: cos and sin by position, positions that depend on queries alone, query chunks.

    Attributes:
        cuts: by where queries are cut, these edges, and what a kernel derives from them.
        chunks: by their edges and stops.
    """

    positions: dict[Hashable, Tensor] = field(default_factory=dict)
    angles: dict[Hashable, CosSin] = field(default_factory=dict)
    cuts: dict[tuple[int, ...], tuple[tuple[int, ...], dict[Any, Any]]] = field(default_factory=dict)
    chunks: dict[Hashable, QueryChunks] = field(default_factory=dict)


@dataclass(frozen=True)
class QueryBlock:
    """The queries of batch rows that are alike, in one layer and one call.

    Attributes:
        q: ``[B, H, T, D]``, unrotated, channels in the order of ``Rope.pair``, as in ``keys``; queries ``start : stop``
            of each row's own count.
        keys: ``[B, Hkv, N, D]`` at the positions that chosen keys are stored at.
        values: ``[B, Hkv, N, Dv]``.
        scored: the keys that scores are made from, or None if an index holds the inputs of scores.
        batch: which rows of the layer's index they are: a slice, or their numbers ``[B]`` int64.
        padding: how many padding tokens the index holds before theirs.
        table: makes cos and sin of every position in the window.
        shared: by all layers of the forward.
    """

    q: Tensor
    keys: Tensor
    values: Tensor
    scored: Tensor | None
    batch: slice | Tensor
    start: int
    stop: int
    rope: Rope
    scale: float
    softcap: float | None
    layer: int
    padding: int
    table: Callable[[], CosSin]
    shared: Shared

    def in_call(self, r0: int, r1: int) -> slice:
        """Where queries ``r0 : r1`` are in the call."""
        return slice(r0 - self.start, r1 - self.start)

    def between(self, r0: int, r1: int) -> Tensor:
        """Queries ``r0 : r1`` of ``q``."""
        return self.q if (r0, r1) == (self.start, self.stop) else self.q[:, :, self.in_call(r0, r1)]

    def rotated(self, r0: int, r1: int, position: int) -> Tensor:
        """Queries ``r0 : r1`` of ``q``, all rotated to one position."""
        at = torch.full((r1 - r0,), position)
        return self.rope.rotate_q(self.between(r0, r1), *self.cos_sin(at, "one", position, r1 - r0))

    def gathered(self, r0: int, r1: int) -> dict[str, Any]:
        """The inputs of gathered attention of queries ``r0 : r1``, whatever they chose."""
        layer = {"rope": self.rope, "scale": self.scale, "softcap": self.softcap}
        return {"q": self.between(r0, r1), "keys": self.keys, "v": self.values, **layer}

    def cut(self, edges: tuple[int, ...]) -> dict[str, Any]:
        """``edges`` of a ``PerQueryChunk`` and what is derived from them, the same objects in every layer."""
        known, derived = self.shared.cuts.setdefault(edges, (edges, {}))
        return {"edges": known, "derived": derived}

    def chunks(self, edges: tuple[int, ...], stops: tuple[int, ...]) -> QueryChunks:
        """Query chunks with these edges and stops, the same object in every layer."""
        if (edges, stops) not in self.shared.chunks:
            self.shared.chunks[edges, stops] = QueryChunks(edges, stops)
        return self.shared.chunks[edges, stops]

    def cos_sin(self, positions: Tensor, *key: Hashable, scaled: bool = True) -> CosSin:
        """cos and sin of the rows' angles, with their factor or without, at positions that ``key`` stands for."""
        known, place = self.shared.angles, (self.rope.table, self.q.device, scaled, *key)
        if place not in known:
            cos, sin = cos_sin(self.rope.table, positions, self.q.device)
            factor = 1.0 if scaled else self.rope.table.factor
            known[place] = (cos, sin) if factor == 1.0 else (cos / factor, sin / factor)
        return known[place]
