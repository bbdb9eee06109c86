"""LongHeads: each query attends to the few chunks that score highest for its head, moved together into the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from longspan.errors import AttachError
from longspan.methods.base import LayerFacts, Method, resolved
from longspan.methods.dense import check_dense, dense_queries
from longspan.positions import ChosenPositionMap, Chunked, FarPosition, InOrder
from longspan.terms import ChunkScore, Dense, Share

if TYPE_CHECKING:
    from longspan.choosing.chunks import Chunks

Remap = Literal["slots", "far", "dca"]


@dataclass(frozen=True, kw_only=True)
class LongHeads(Method):
    """LongHeads (Lu et al., 2024).

    A query attends to the first chunk, the local chunks (its own and the previous one) and the full chunks between
    them with the highest scores, ``k`` chunks in total. The kept chunks take consecutive slots in their order, and a
    key has the relative position ``(slot(i) - slot(j)) · l + i mod l - j mod l``. The first ``L`` queries attend to
    all keys, unless ``dense`` says fewer. Time is linear in the length.

    Args:
        chunk_length: ``l``, the tokens of a chunk (default ``L / 16``). On real models shorter chunks find more: set
            16 (``docs/real-models.md``).
        num_chunks: ``k``, the chunks of a query (default as many as ``L`` tokens hold).
        local_chunks: the number of most recent chunks, always kept, including the query's own (default as many as
            ``L / 8`` tokens hold, at least 2; 2 if ``num_chunks`` is given). Eq 3 has 1; the authors' code keeps 2,
            because a chunk with few tokens so far is too little local context.
        share: the heads that choose together, by the sum of their scores: ``"group"``, the ``H / Hkv`` query heads of
            a key head, which reads ``H / Hkv`` times fewer bytes; ``"head"``, each query head alone, as in the paper,
            whose models have one query head per key head; ``"layer"``, all heads ("heads fixed" in the paper's
            ablation).
        score: the paper's ``"representation"`` of a chunk, or another score of
            ``longspan.choosing.chunk_index.ChunkIndex``.
        first_chunk: whether the first chunk is always kept.
        remap: the positions of kept chunks: ``"slots"``, as in the paper; ``"far"``, all but the local chunks at one
            far position (ESA's map); ``"dca"``, the positions of DCA.
        far: the far position for ``remap="far"`` (default ``L / 2``).
        dense: the first queries that attend to all keys: those of the ``"window"`` (``L``); ``"kept"``, the first
            ``k · l``, after which queries choose inside the window too; or a number between.
    """

    name = "longheads"
    title = "LongHeads"
    paper = "Lu et al., 2024, arXiv 2402.10685"
    chunk_length: int | None = None
    num_chunks: int | None = None
    local_chunks: int | None = None
    share: Share = "group"
    score: ChunkScore = "representation"
    first_chunk: bool = True
    remap: Remap = "slots"
    far: int | None = None
    dense: Dense = "window"

    words = {"share": Share, "score": ChunkScore, "remap": Remap}
    least = {"far": 0, "local_chunks": 1, "chunk_length": 1}

    def check(self) -> None:
        self.require("far requires remap='far'", self.far is None or self.remap == "far", "remap")
        check_dense(self, self.dense)
        rule = "num_chunks > local_chunks + first_chunk, which leaves chunks to choose"
        local = 2 if self.local_chunks is None else self.local_chunks
        leaves_some = self.num_chunks is None or self.num_chunks > local + self.first_chunk
        self.require(rule, leaves_some, "num_chunks", "local_chunks", "first_chunk")

    def defaults(self, window: int) -> dict[str, Any]:
        size = max(window // 16, 1) if self.chunk_length is None else self.chunk_length
        count = min(16, window // size) if self.chunk_length is None else window // size
        local = 2 if self.chunk_length is None or self.num_chunks is not None else max(window // 8 // size, 2)
        sizes = {"chunk_length": size, "num_chunks": count, "local_chunks": local}
        return {**sizes, "far": window // 2} if self.remap == "far" else sizes

    def check_window(self, window: int) -> None:
        size, count = self._lk
        fits = count * size <= window
        self.require("num_chunks · chunk_length ≤ window", fits, "num_chunks", "chunk_length", window=window)
        self.require("far < window", self.far is None or self.far < window, "far", window=window)

    @property
    def _lk(self) -> tuple[int, int]:
        return resolved(self.chunk_length), resolved(self.num_chunks)

    selects = True

    def selection(self, window: int) -> Chunks:
        from longspan.choosing.chunks import Chunks

        size, count = self._lk
        local = resolved(self.local_chunks)
        return Chunks(size, count, local, self.first_chunk, self.share, self.score, self.plain_queries(window))

    def positions(self, window: int) -> ChosenPositionMap:
        if self.remap == "dca":
            return Chunked.over(self._lk[0], window)
        size = self._lk[0]
        return InOrder(max(window // 16 // size, 1)) if self.far is None else FarPosition(self.far)

    def plain_queries(self, window: int) -> int:
        size, count = self._lk
        return dense_queries(self, self.dense, kept=count * size, window=window)

    @property
    def uses_calibration(self) -> bool:
        return self.score == "token_max"

    def check_layers(self, window: int, layers: Sequence[LayerFacts]) -> None:
        super().check_layers(window, layers)
        for layer in layers:
            if self.score == "representation" and layer.key_dim != layer.value_dim:
                raise AttachError(
                    f"{layer.name}: keys have {layer.key_dim} channels and values {layer.value_dim}, and longheads "
                    "with score='representation' requires equal sizes; use another score: LongHeads(score='bounds')"
                )
