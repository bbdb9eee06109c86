"""InfLLM: blocks of tokens, chosen by a few representatives, shared by the heads and the queries of a piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longspan.methods.base import Method, require
from longspan.positions import FarNear

if TYPE_CHECKING:
    from longspan.selection.blocks import Blocks


@dataclass(frozen=True, kw_only=True)
class InfLLM(Method):
    """InfLLM (Xiao et al., 2024).

    The queries of a piece keep the first tokens and the best-scored blocks, all seen from one far position, and the
    local tokens before the piece and the piece itself, at their true distance. A block's score is ``Σ q · k`` over the
    piece's queries, all heads and the block's representatives, unrotated; those are its tokens with the highest mean
    score in the local attention of the queries after them. The first ``L`` queries attend to everything.

    What is chosen depends on how the text arrives: pieces end at multiples of ``piece``, and where a call ends. The
    paper's own numbers (128 first tokens, 4096 local ones, 16 blocks of 128, pieces of 512, for windows of 8k and 32k)
    are the defaults at a window of 8192. Smaller windows get fewer blocks rather than blocks of a few tokens: it is
    the passage around a token that a block keeps together.

    Args:
        initial: first tokens that are always kept (default ``L / 64``).
        local: tokens before the piece that are always kept (default ``L / 2``).
        block: tokens of a block (default ``L / 64``, and at least 32 or ``L / 16``, whichever is less); block ``b``
            begins at ``initial + b · block``.
        blocks: how many are chosen (default 16, less where ``blocks · block`` would exceed ``L / 4``).
        representatives: tokens of a block that stand for it (default 4, at most ``block``).
        piece: queries that choose together in prefill (default ``L / 16``);
            ``initial + local + blocks · block + piece ≤ L``.
        far: the distance of initial and chosen tokens (default ``local``).
    """

    name = "infllm"
    paper = "Xiao et al., 2024, arXiv 2402.04617"
    initial: int | None = None
    local: int | None = None
    block: int | None = None
    blocks: int | None = None
    representatives: int | None = None
    piece: int | None = None
    far: int | None = None

    def check(self) -> None:
        least = {"initial": 0, "local": 1, "block": 1, "blocks": 1, "representatives": 1, "piece": 1, "far": 0}
        for field, low in least.items():
            value = getattr(self, field)
            require(f"InfLLM: {field} ≥ {low}", value is None or value >= low, **{field: value})
        if self.representatives is not None and self.block is not None:
            self._fits_the_block(self.representatives, self.block)

    def _fits_the_block(self, representatives: int, block: int) -> None:
        require(
            "InfLLM: representatives ≤ block", representatives <= block, representatives=representatives, block=block
        )

    def defaults(self, window: int) -> dict[str, Any]:
        least = max(min(32, window // 16), 1)
        block = max(window // 64, least) if self.block is None else self.block
        local = max(window // 2, 1) if self.local is None else self.local
        return {
            "initial": window // 64,
            "local": local,
            "block": block,
            "blocks": min(16, max(window // 4 // block, 1)),
            "representatives": min(4, block),
            "piece": max(window // 16, 1),
            "far": local,
        }

    def check_window(self, window: int) -> None:
        chosen, far = self.selection(window), self.far
        assert far is not None
        self._fits_the_block(chosen.representatives, chosen.size)
        require(
            "InfLLM: initial + local + blocks · block + piece ≤ window",
            chosen.budget + chosen.piece <= window,
            initial=chosen.initial,
            local=chosen.local,
            blocks=chosen.blocks,
            block=chosen.size,
            piece=chosen.piece,
            window=window,
        )
        require("InfLLM: far < window", far < window, far=far, window=window)

    selects = True
    follows_pieces = True

    def selection(self, window: int) -> Blocks:
        from longspan.selection.blocks import Blocks

        assert self.initial is not None and self.local is not None and self.piece is not None
        assert self.block is not None and self.blocks is not None and self.representatives is not None
        return Blocks(self.initial, self.local, self.block, self.blocks, self.piece, self.representatives, window)

    def positions(self, window: int) -> FarNear:
        assert self.far is not None
        return FarNear(self.far)

    def plain_rows(self, window: int) -> int:
        return window
