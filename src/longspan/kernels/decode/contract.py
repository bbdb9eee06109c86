"""Inputs of one decoding step, whichever implementation runs it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from longspan.rope import CosSin


@dataclass(frozen=True, kw_only=True)
class BandRange:
    """A band: the keys ``low[row] ≤ j < high[row]`` of a stored rotation, seen by queries rotated by row ``row``.

    Attributes:
        low, high: ``[T]`` int64, for ``T`` tokens that follow one another.
        cos_sin: cos and sin ``[T, r / 2]``.
        rotation: the number of the stored rotation.
    """

    low: Tensor
    high: Tensor
    cos_sin: CosSin
    rotation: int


@dataclass(frozen=True)
class ChosenPositions:
    """The positions from which a token sees the units that it chose.

    Attributes:
        rotation: the number of the stored rotation that is read.
        positions: ``[T, m]`` or ``[1, m]`` int64.
        table: cos and sin ``[P, r / 2]`` by position.
        block: the position for unit ``u`` of ``size`` tokens is ``(u mod block) · size`` more.
    """

    rotation: int
    positions: Tensor
    table: CosSin
    block: int = 1


@dataclass(frozen=True, kw_only=True)
class ScoreSpec:
    """How a token's query scores entries, how many it chooses, and how it sees the units that they stand for.

    Attributes:
        entries: ``[B, He, N, W]``; with two signs ``[B, He, 2N, W]``, of which every first one meets the channels of a
            query below zero and every second one those above.
        signs: 1, or 2.
        sums: whether a group's queries are summed, in fp32.
        rounds: whether that sum is rounded to the queries' dtype.
        choosing: ``S``, how many choose in a row of the batch.
        parts: heads of entries whose scores are summed.
        thetas: θ_q and θ_k ``[W, Hkv · D]``, in the keys' dtype, if entries are reduced keys; else None.
        first: the first entry to choose from.
        count: how many are chosen, ``m``.
        tie, last, near: see ``longspan.kernels.topk``.
        size: tokens of a unit that an entry stands for.
        positions: where they are seen from.
    """

    entries: Tensor
    signs: int = 1
    sums: bool
    rounds: bool = False
    choosing: int
    parts: int = 1
    thetas: tuple[Tensor, Tensor] | None = None
    first: int
    count: int
    tie: float = 0.0
    last: bool = False
    near: int = 0
    size: int
    positions: ChosenPositions
