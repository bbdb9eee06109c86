"""Pieces of a text that each score, choose and see tokens, in one call of C for many of them.

``kernels.scores``, ``best`` and ``gathered`` do the same for one piece, with a call each. Here a thread has a piece of
its own from its scores to its output, and nobody waits in between.
"""

from __future__ import annotations

from torch import Tensor

from longspan.kernels.gathered import PerPiece
from longspan.kernels.gathered import compiled as gathered
from longspan.kernels.pieces.compiled import run_into
from longspan.kernels.pieces.contract import Pieces
from longspan.kernels.scores import compiled as scores

__all__ = ["Pieces", "run_into", "why_not"]


def why_not(job: PerPiece, asked: Tensor, scored: Tensor, together: int) -> str | None:
    """Why this kernel cannot run on these, or None."""
    if job.key_turn is not None or job.ends is not None:
        return "the tokens of a piece are not all seen alike"
    return gathered.why_not(job) or scores.why_no_worth(asked, scored, together)
