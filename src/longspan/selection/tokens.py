"""Tokens chosen by all queries of a piece together: ESA's selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from longspan.deferred import torch
from longspan.kernels.best import best, best_nearby
from longspan.selection.chunks import Share
from longspan.selection.pieces import ByPiece

if TYPE_CHECKING:
    from torch import Tensor

Combine = Literal["sum", "max"]


@dataclass(frozen=True)
class Tokens(ByPiece):
    """The first tokens, ``top_k`` chosen ones, and the ``local`` tokens before a piece together with the piece.

    A piece is what chooses together: queries from one multiple of ``piece`` to the next, or as many as arrive at once.

    Args:
        initial: ``lI``, first tokens that are always kept.
        local: ``lL``, tokens before the piece that are always kept.
        top_k: ``k``, chosen of those between.
        piece: ``lC``.
        proximity: ``ε`` of Eq 8: a token takes the best score within ``ε`` of it.
        share: what chooses together: the layer, the group of a key head, or every query head by itself.
        combine: how the scores of heads that choose together become one: their sum (Eq 4), or the largest.
    """

    initial: int
    local: int
    top_k: int
    piece: int
    proximity: int = 1
    share: Share = "layer"
    combine: Combine = "sum"

    @property
    def chosen(self) -> int:
        """How many tokens a piece chooses."""
        return self.top_k

    def candidates(self, piece_start: int) -> tuple[int, int]:
        """The middle tokens that a piece chooses from, ``first : one past the last``."""
        return self.initial, piece_start - self.local

    def choose(self, worth: Tensor) -> Tensor:
        """The tokens that a piece chooses among its candidates, in ascending order.

        ``F'(j) = max F(m)`` within ``ε`` of ``j`` (Eq 8).

        Args:
            worth: ``F`` of each candidate (Eq 4), ``[B, S, M]``.

        Returns:
            ``[B, S, top_k]`` int64, counted from the first candidate.
        """
        # Neighbours share their best score, so ties are common; the first tokens win them, in every call alike.
        return best(worth, self.top_k, near=self.proximity)

    def ranked(self, scores: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """F' of all tokens before a piece, for those who look on: ``choose`` needs that of the candidates alone.

        Tokens that are kept anyway are held to the candidates' best, and take the best of their own neighbours.

        Args:
            scores: ``[B, S, T, M]``, f of each query of the piece for each candidate.
            before, after: the same for the tokens before and after those.

        Returns:
            ``[B, S, N]``.
        """
        most = scores.amax(dim=-1, keepdim=True)
        parts = [(part - most).amax(dim=-2) for part in (before, scores, after)]
        return torch.cat([best_nearby(part, self.proximity) for part in parts], dim=-1)
