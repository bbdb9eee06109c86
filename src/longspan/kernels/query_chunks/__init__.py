"""Pieces of a text that each score, choose and see tokens, in one call of C for many of them.

``kernels.scores``, ``best`` and ``gathered`` do the same for one piece, with a call each. Here a thread has a piece of
its own from its scores to its output, and nobody waits in between.
"""

from __future__ import annotations

from torch import Tensor

from longspan.kernels.gathered import PerQueryChunk
from longspan.kernels.gathered import compiled as gathered
from longspan.kernels.query_chunks.compiled import run_into
from longspan.kernels.query_chunks.contract import Pieces
from longspan.kernels.scores import compiled as scores

__all__ = ["Pieces", "run_into", "unsupported_reason"]


def unsupported_reason(job: PerQueryChunk, asked: Tensor, scored: Tensor, together: int) -> str | None:
    """Why this kernel cannot run on these, or None."""
    if job.key_cos_sin is not None or job.ends is not None:
        return "the tokens of a piece are not all seen alike"
    return gathered.unsupported_reason(job) or scores.token_scores_unsupported_reason(asked, scored, together)
