"""Blocks chosen by all queries of a piece together: InfLLM's selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longspan.deferred import torch
from longspan.selection.pieces import ByPiece

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Blocks(ByPiece):
    """The first tokens, ``blocks`` chosen blocks, and the ``local`` tokens before a piece together with the piece.

    Block ``b`` is the ``size`` tokens from ``initial + b · size`` on, and can be chosen once none of it is local. The
    few tokens between the last such block and the local ones are kept by nobody until their block is whole.

    Args:
        initial: first tokens that are always kept.
        local: tokens before the piece that are always kept.
        size: tokens of a block.
        blocks: how many a piece chooses.
        piece: the most queries of a piece.
    """

    initial: int
    local: int
    size: int
    blocks: int
    piece: int

    @property
    def chosen(self) -> int:
        """How many tokens a piece chooses."""
        return self.blocks * self.size

    def candidates(self, piece_start: int) -> int:
        """How many blocks a piece chooses from: the first ones, as long as they end before the local tokens."""
        return max(piece_start - self.local - self.initial, 0) // self.size

    def choose(self, scores: Tensor) -> Tensor:
        """The tokens of the best blocks, in ascending order.

        Args:
            scores: ``[B, S, n]`` of the candidates, at least ``blocks`` of them.

        Returns:
            ``[B, S, blocks · size]`` int64, counted from the first candidate.
        """
        best = scores.topk(self.blocks, dim=-1).indices.sort(dim=-1).values
        return (best[..., None] * self.size + torch.arange(self.size, device=scores.device)).flatten(-2)
