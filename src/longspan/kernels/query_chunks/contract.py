"""What is asked for of pieces that run together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from longspan.kernels.gathered.contract import PerQueryChunk


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """What the queries of a call do, piece by piece.

    Attributes:
        job: their queries, keys and values, and how they see tokens, of which there is one run; its ``tokens`` ``[B, S,
            m]`` are only looked at for their shape.
        asked: ``[B, A, T, C, D']``, the queries as tokens are scored by them; see ``longspan.kernels.scores.worth``.
        scored: ``[B, Hkv', N, D']``, the keys that they meet.
        together: how many consecutive heads of ``asked`` choose as one; ``A / together`` is S.
        edges: where pieces begin among the queries, and where the last one ends.
        first: the first token to choose from.
        stops: one past the last, for each piece; ascending.
        near: see ``longspan.kernels.topk``.
    """

    job: PerQueryChunk
    asked: Tensor
    scored: Tensor
    together: int
    edges: Sequence[int]
    first: int
    stops: Sequence[int]
    near: int
