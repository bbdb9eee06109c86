"""Pieces: the queries that choose together, for ESA's tokens and InfLLM's blocks alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longspan.bands import IndexMap
from longspan.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor


class ByPiece:
    """What is common to selections by piece: the first tokens, chosen ones, the ``local`` ones before a piece, and it.

    A piece is what chooses together: queries from one multiple of ``piece`` to the next, or as many as arrive at once.

    Attributes:
        initial: first tokens that are always kept.
        local: tokens before the piece that are always kept.
        piece: the most queries of a piece.
    """

    initial: int
    local: int
    piece: int

    @property
    def head(self) -> int:
        """How many first tokens are always kept."""
        return self.initial

    def piece_start(self, start: int, window: int) -> IndexMap:
        """Where the piece of query ``i`` starts, for queries that arrive from ``start`` on."""

        def begins(i: Tensor) -> Tensor:
            borders = (i // self.piece * self.piece).clamp(min=start)
            return torch.where(i >= window, borders.clamp(min=window), borders)

        return begins

    def border(self, start: int, window: int) -> IndexMap:
        """The first of the local tokens of query ``i``'s piece, for queries that arrive from ``start`` on."""
        begins = self.piece_start(start, window)
        return lambda i: (begins(i) - self.local).clamp(min=0)

    def pieces(self, start: int, stop: int, window: int) -> list[tuple[int, int]]:
        """Queries ``start : stop`` cut into pieces, at multiples of ``piece`` and at the window."""
        cuts = {start, stop, *range(start // self.piece * self.piece + self.piece, stop, self.piece)}
        if start < window < stop:
            cuts.add(window)
        edges = sorted(cuts)
        return list(zip(edges[:-1], edges[1:], strict=True))
