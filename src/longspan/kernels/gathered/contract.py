"""The job of a gathered kernel, whichever implementation runs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from torch import Tensor

from longspan.rope import CosSin, Rope

Part = tuple[slice, Tensor, Tensor]  # rows of a job, their output [B, H, n, Dv] and log-sum-exp [B, H, n]


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Attention to keys that lie scattered among ``N`` stored ones.

    Attributes:
        q: ``[B, H, T, D]``, unrotated.
        keys, v: ``[B, Hkv, N, D]`` and ``[B, Hkv, N, Dv]``.
        rope: how cos and sin rotate a query or a key.
        scale, softcap: a score is ``scale · q·k``, bounded to ``softcap · tanh(score / softcap)`` unless that is None.
    """

    q: Tensor
    keys: Tensor
    v: Tensor
    rope: Rope
    scale: float
    softcap: float | None = None


@dataclass(frozen=True, kw_only=True)
class PerRow(Gathered):
    """Every query has units of its own, each seen from a position of its own.

    Attributes:
        units: ``[B, S, T, m]`` int64, S = 1, Hkv or H: for the layer, each key head's group or each query head. Unit
            ``n`` is tokens ``n · size : (n + 1) · size``; a query's are different ones.
        size: tokens of a unit.
        positions: ``[T, m]``, or ``[B, S, T, m]``, int64: the query's position for each of its units.
        table: cos and sin ``[P, r / 2]`` by position.
    """

    units: Tensor
    size: int
    positions: Tensor
    table: CosSin

    def part(self, rows: slice) -> PerRow:
        """The job of some queries."""
        q, units, positions = self.q[:, :, rows], self.units[:, :, rows], self.positions[..., rows, :]
        return replace(self, q=q, units=units, positions=positions)

    def rotated(self) -> Tensor:
        """Queries rotated for each of their units: ``[B, H, T · m, D]``."""
        at, count, heads = self.positions, self.positions.shape[-1], self.q.shape[1]
        if at.dim() == 4:
            at = at.repeat_interleave(heads // at.shape[1], dim=1)
        spread = self.q.unsqueeze(3).expand(-1, -1, -1, count, -1).flatten(2, 3)
        return self.rope.rotate_q(spread, *(x[at.flatten(-2)] for x in self.table))


@dataclass(frozen=True, kw_only=True)
class PerQueryChunk(Gathered):
    """All queries of a chunk have the same tokens.

    Attributes:
        tokens: ``[B, S, M]`` int64, S as above, if all queries are one chunk; ``[B, S, P, M]`` for ``P`` chunks.
        edges: of several chunks where each begins among the queries, and where the last one ends; else None.
        cos_sin: cos and sin ``[T, r / 2]`` of the queries, one pair for each run of tokens that are seen alike.
        ends: ``[B, S, len(cos_sin)]`` int64, or ``[B, S, P, len(cos_sin)]``: one past the last of ``tokens`` in each
            run; None if there is one run. Tokens after the last run are not seen, so that chunks may have fewer.
        key_cos_sin: cos and sin ``[M, r / 2]`` that the gathered keys are rotated by, or None if they stay as stored.
        derived: what a kernel derives from ``tokens``, ``ends``, ``edges`` and ``cos_sin``. Layers whose jobs have the
            same objects there may share it; these must not change then.
    """

    tokens: Tensor
    cos_sin: tuple[CosSin, ...]
    ends: Tensor | None = None
    key_cos_sin: CosSin | None = None
    edges: tuple[int, ...] | None = None
    derived: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def longest(self) -> int:
        """The most queries of a chunk."""
        return max(b - a for a, b in pairwise(self.edges or (0, self.q.shape[2])))

    def chunks(self) -> Iterator[tuple[slice, PerQueryChunk]]:
        """The queries of each chunk, and a job of that chunk alone."""
        if self.edges is None:
            yield slice(0, self.q.shape[2]), self
            return
        for p, (first, last) in enumerate(zip(self.edges[:-1], self.edges[1:], strict=True)):
            yield (
                slice(first, last),
                replace(
                    self,
                    q=self.q[:, :, first:last],
                    tokens=self.tokens[:, :, p],
                    cos_sin=tuple((cos[first:last], sin[first:last]) for cos, sin in self.cos_sin),
                    ends=None if self.ends is None else self.ends[:, :, p],
                    edges=None,
                    derived={},
                ),
            )
