"""InfLLM: blocks of tokens, scored by a few representatives, shared by all heads and the queries of a query chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longspan.methods.base import Method, resolved
from longspan.methods.dense import check_dense, dense_queries
from longspan.positions import FarPosition
from longspan.terms import Dense

if TYPE_CHECKING:
    from longspan.choosing.blocks import Blocks


@dataclass(frozen=True, kw_only=True)
class InfLLM(Method):
    """InfLLM (Xiao et al., 2024).

    The queries of a query chunk attend to the initial tokens and the blocks with the highest scores, all at one far
    position, and to the local tokens before the chunk and the chunk itself, at their true distance. The score of a
    block is ``Σ q · k`` over the queries of the chunk, all heads and the representatives of the block, unrotated. The
    representatives are the tokens with the highest mean score in the local attention of the queries after them. The
    first ``L`` queries attend to all keys, unless ``dense`` says fewer.

    The choice depends on the calls: a query chunk ends at each multiple of ``query_chunk`` and with each call. The
    sizes in the paper (128 initial tokens, 4096 local tokens, 16 blocks of 128, query chunks of 512, for windows of 8k
    and 32k) are the defaults at a window of 8192. A smaller window has fewer blocks instead of shorter ones, because a
    block has to keep the passage around a token together.

    Args:
        initial: the number of initial tokens, always kept (default ``L / 64``).
        local: the number of tokens before the query chunk, always kept (default ``L / 2``).
        block: the tokens of a block (default ``L / 64``, but at least the smaller of 32 and ``L / 16``); block ``b``
            begins at ``initial + b · block``.
        blocks: the number of chosen blocks (default 16, fewer if ``blocks · block`` would exceed ``L / 4``).
        representatives: the tokens that represent a block in its score (default 4, at most ``block``).
        query_chunk: the queries of a query chunk, which choose together in prefill (default ``L / 16``);
            ``initial + local + blocks · block + query_chunk ≤ L``.
        far: the distance of initial and chosen tokens (default ``local``).
        dense: the first queries that attend to all keys: those of the ``"window"`` (``L``); ``"kept"``, the first
            ``initial + local + blocks · block``, after which queries choose inside the window too; or a number between.
    """

    name = "infllm"
    title = "InfLLM"
    paper = "Xiao et al., 2024, arXiv 2402.04617"
    initial: int | None = None
    local: int | None = None
    block: int | None = None
    blocks: int | None = None
    representatives: int | None = None
    query_chunk: int | None = None
    far: int | None = None
    dense: Dense = "window"

    least = {"initial": 0, "local": 1, "block": 1, "blocks": 1, "representatives": 1, "query_chunk": 1, "far": 0}

    def check(self) -> None:
        check_dense(self, self.dense)
        if self.representatives is not None and self.block is not None:
            self.require("representatives ≤ block", self.representatives <= self.block, "representatives", "block")

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
            "query_chunk": max(window // 16, 1),
            "far": local,
        }

    def check_window(self, window: int) -> None:
        rule = "initial + local + blocks · block + query_chunk ≤ window"
        fits = self._kept + resolved(self.query_chunk) <= window
        self.require(rule, fits, "initial", "local", "blocks", "block", "query_chunk", window=window)
        self.require("far < window", resolved(self.far) < window, "far", window=window)

    @property
    def _kept(self) -> int:
        return resolved(self.initial) + resolved(self.local) + resolved(self.blocks) * resolved(self.block)

    selects = True
    call_dependent = True

    def selection(self, window: int) -> Blocks:
        from longspan.choosing.blocks import Blocks

        own = self.initial, self.local, self.block, self.blocks, self.query_chunk, self.representatives
        return Blocks(*map(resolved, (*own, self.plain_queries(window))))

    def positions(self, window: int) -> FarPosition:
        return FarPosition(resolved(self.far))

    def plain_queries(self, window: int) -> int:
        return dense_queries(self, self.dense, kept=self._kept, window=window)
