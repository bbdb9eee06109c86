"""Dual Chunk Attention: keep every key, and remap relative positions into the window, chunk by chunk."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from longspan.methods.base import Method, resolved
from longspan.positions import Chunked
from longspan.selection import Everything, Selection


@dataclass(frozen=True, kw_only=True)
class DCA(Method):
    """Dual Chunk Attention (An et al., 2024).

    Every key is kept at ``rel = q - j mod s``. The query position ``q`` is ``i mod s`` for keys in the chunk of ``s``
    tokens that contains the query, ``i mod s + s`` for keys in the previous chunk if ``i mod s < w``, and ``c - 1``
    for all other keys (Eqs 2-8).

    Args:
        chunk_size: ``s`` (default ``3c / 4``).
        local_window: ``w``, the number of queries of a chunk that see the previous chunk at its true distance
            (default ``c - s``).
        window: ``c``, one past the largest query position (default ``L``); ``s + w ≤ c ≤ L``.
        length_scale: ``a``: for n > L, cos and sin of queries and keys are multiplied by ``a ln(n / L) + 1``. It is
            0.05 in the released code since 24 April 2024 (``DCA.CHUNKLLAMA``, https://github.com/HKUNLP/ChunkLlama),
            and 0.1 in vLLM for Qwen's models of 1M tokens (``DCA.QWEN_1M``, its ``DualChunkFlashAttentionImpl``).
            Default: 0.1 with the chunks of a config that states its window too, else 0, as in the paper.
    """

    CHUNKLLAMA: ClassVar[float] = 0.05
    QWEN_1M: ClassVar[float] = 0.1

    name = "dca"
    title = "DCA"
    paper = "An et al., 2024, arXiv 2402.17463"
    chunk_size: int | None = None
    local_window: int | None = None
    window: int | None = None
    length_scale: float | None = None

    least = {"chunk_size": 1, "local_window": 0, "window": 1, "length_scale": 0}

    def check(self) -> None:
        if self.window is not None:
            self._fits(self.chunk_size or 1, self.local_window or 0, self.window)

    def _fits(self, s: int, w: int, c: int) -> None:
        self.require("chunk_size + local_window ≤ window", s + w <= c, chunk_size=s, local_window=w, window=c)

    def defaults(self, window: int) -> dict[str, Any]:
        c = window if self.window is None else self.window
        s = max(3 * c // 4, 1) if self.chunk_size is None else self.chunk_size
        self._fits(s, self.local_window or 0, c)
        return {"chunk_size": s, "local_window": c - s, "window": c, "length_scale": 0.0}

    def check_window(self, window: int) -> None:
        c = self._swc[2]
        self.require("window ≤ the model's window", c <= window, window=c, model_window=window)

    @property
    def _swc(self) -> tuple[int, int, int]:
        return resolved(self.chunk_size), resolved(self.local_window), resolved(self.window)

    def prescribed(
        self, *, chunk_size: int | None, local_window: int | None, window: int | None, length_scale: float | None
    ) -> Self:
        if (self.chunk_size, self.local_window, self.window) != (None, None, None):
            return self
        scale = length_scale if self.length_scale is None else self.length_scale
        return replace(self, chunk_size=chunk_size, local_window=local_window, window=window, length_scale=scale)

    def selection(self, window: int) -> Selection:
        return Everything()

    def positions(self, window: int) -> Chunked:
        return Chunked(*self._swc)

    def query_factor(self, window: int, total: int) -> float:
        if not self.length_scale or total <= window:
            return 1.0
        # Scaled cos and sin of queries and keys scale a score twice. One factor on the query leaves stored keys valid.
        return float((self.length_scale * math.log(total / window) + 1.0) ** 2)

    @property
    def length_dependent(self) -> bool:
        return bool(self.length_scale) or super().length_dependent

    def plain_queries(self, window: int) -> int:
        s, w, _ = self._swc
        # With w > s the whole second chunk is exact, and query 2s is the first that sees an earlier chunk.
        return s + min(w, s)

    def warnings(self, window: int) -> list[str]:
        s, _, c = self._swc
        notes = []
        if 2 * s < c:
            first = self.plain_queries(window)
            notes.append(
                f"DCA: chunk_size {s} is less than half the window {c}: queries from index {first} differ from the "
                "stock model"
            )
        if self.length_scale:
            notes.append(
                f"DCA: in a text of n > {window} tokens queries and keys are multiplied by {self.length_scale} ln(n / "
                f"{window}) + 1, so that all of them follow its length; length_scale=0 leaves that out"
            )
        return notes
