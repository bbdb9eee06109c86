"""What a gathered kernel is asked for, whichever implementation answers."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class PerQueryChunk(Gathered):
    """All queries have the same tokens.

    Attributes:
        tokens: ``[B, S, M]`` int64, S as above.
        cos_sin: cos and sin ``[T, r / 2]`` of the queries, one pair for each run of tokens that are seen alike.
        ends: ``[B, S, len(cos_sin)]`` int64: one past the last of ``tokens`` in each run; None where there is one run.
        key_cos_sin: cos and sin ``[M, r / 2]`` that the gathered keys are rotated by, or None if they stay as stored.
    """

    tokens: Tensor
    cos_sin: tuple[CosSin, ...]
    ends: Tensor | None = None
    key_cos_sin: CosSin | None = None
