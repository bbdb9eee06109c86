"""LongHeads: each query keeps the few chunks that matter to its head, moved together into the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from longspan.errors import AttachError
from longspan.methods.base import LayerFacts, Method, require
from longspan.positions import Chunked, FarNear, InOrder, SeesChosen
from longspan.terms import ChunkScore, Share

if TYPE_CHECKING:
    from longspan.selection.chunks import Chunks

Remap = Literal["slots", "far", "dca"]

_WORDS = (("share", Share), ("score", ChunkScore), ("remap", Remap))


@dataclass(frozen=True, kw_only=True)
class LongHeads(Method):
    """LongHeads (Lu et al., 2024).

    A query keeps the first chunk, its own and the one before, and the best-scored full chunks between, ``k`` in all,
    and sees them in their order as if nothing lay between them: at ``(slot(i) - slot(j)) · l + i mod l - j mod l``. The
    first ``L`` queries attend to everything. Time is linear in the length.

    Args:
        chunk_length: ``l`` (default ``L / 16``).
        num_chunks: ``k`` (default 16, less where ``k · l`` would exceed ``L``).
        local_chunks: how many of the most recent chunks, the query's own among them, are always kept. Eq 3 has 1; the
            authors' code keeps 2, since a chunk that has only begun is no local context.
        share: ``"group"``: the query heads of a key head choose together, by the sum of their scores, and read as many
            times fewer bytes; ``"head"``: each for itself, as in the paper, whose models have one query head for each
            key head; ``"layer"``: all of them together ("heads fixed" in the paper's ablation).
        score: the paper's ``"representation"`` of a chunk, or another one: see ``longspan.index.ChunkIndex``.
        first_chunk: whether the first chunk is always kept.
        remap: at which positions the kept chunks are seen: the paper's ``"slots"``, all but the local ones at one
            ``"far"`` position (ESA's map), or where ``"dca"`` has them.
        far: that position, for ``remap="far"`` (default ``L / 2``).
    """

    name = "longheads"
    paper = "Lu et al., 2024, arXiv 2402.10685"
    chunk_length: int | None = None
    num_chunks: int | None = None
    local_chunks: int = 2
    share: Share = "group"
    score: ChunkScore = "representation"
    first_chunk: bool = True
    remap: Remap = "slots"
    far: int | None = None

    def check(self) -> None:
        for field, words in _WORDS:
            value = getattr(self, field)
            require(f"LongHeads: {field} is one of {', '.join(get_args(words))}", value in get_args(words), given=value)
        require("LongHeads: far is for remap='far'", self.far is None or self.remap == "far", remap=self.remap)
        require("LongHeads: far ≥ 0", self.far is None or self.far >= 0, far=self.far)
        require("LongHeads: local_chunks ≥ 1", self.local_chunks >= 1, local_chunks=self.local_chunks)
        if self.chunk_length is not None:
            require("LongHeads: chunk_length ≥ 1", self.chunk_length >= 1, chunk_length=self.chunk_length)
        if self.num_chunks is not None:
            self._leaves_some(self.num_chunks)

    def _leaves_some(self, k: int) -> None:
        forced = self.local_chunks + self.first_chunk
        require(
            "LongHeads: num_chunks > local_chunks + first_chunk, so that there are chunks to choose",
            k > forced,
            num_chunks=k,
            local_chunks=self.local_chunks,
            first_chunk=self.first_chunk,
        )

    def defaults(self, window: int) -> dict[str, Any]:
        size = max(window // 16, 1) if self.chunk_length is None else self.chunk_length
        own = {"chunk_length": size, "num_chunks": min(16, window // size)}
        return {**own, "far": window // 2} if self.remap == "far" else own

    def check_window(self, window: int) -> None:
        size, count = self._lk
        require(
            "LongHeads: num_chunks · chunk_length ≤ window",
            count * size <= window,
            num_chunks=count,
            chunk_length=size,
            window=window,
        )
        self._leaves_some(count)
        require("LongHeads: far < window", self.far is None or self.far < window, far=self.far, window=window)

    @property
    def _lk(self) -> tuple[int, int]:
        assert self.chunk_length is not None and self.num_chunks is not None
        return self.chunk_length, self.num_chunks

    selects = True

    def selection(self, window: int) -> Chunks:
        from longspan.selection.chunks import Chunks

        size, count = self._lk
        return Chunks(size, count, self.local_chunks, self.first_chunk, self.share, self.score, window)

    def positions(self, window: int) -> SeesChosen:
        if self.remap == "dca":
            return Chunked.over(self._lk[0], window)
        return InOrder() if self.far is None else FarNear(self.far)

    def plain_rows(self, window: int) -> int:
        return window

    @property
    def uses_calibration(self) -> bool:
        return self.score == "token_max"

    def check_layers(self, window: int, layers: Sequence[LayerFacts]) -> None:
        super().check_layers(window, layers)
        for layer in layers:
            if self.score == "representation" and layer.key_dim != layer.value_dim:
                raise AttachError(
                    f"{layer.name}: keys of size {layer.key_dim} and values of size {layer.value_dim}; longheads' "
                    "representation takes equal sizes: use another score, such as LongHeads(score='bounds')"
                )
