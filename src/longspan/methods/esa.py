"""ESA: token-level selection, shared by the heads of a layer and the queries of a query chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from longspan.errors import CalibrationError
from longspan.methods.base import Method, resolved
from longspan.methods.dense import check_dense, dense_queries
from longspan.positions import ChosenPositionMap, Chunked, FarPosition, InOrder
from longspan.terms import Dense, Share

if TYPE_CHECKING:
    from longspan.calibration import Calibration
    from longspan.choosing.tokens import Tokens

Remap = Literal["far", "slots", "dca"]


@dataclass(frozen=True, kw_only=True)
class ESA(Method):
    """Efficient Selective Attention (Wang et al., 2025).

    The queries of a query chunk attend to the initial tokens and the ``k`` middle tokens with the highest scores, all
    at one far position, and to the local tokens before the chunk and the chunk itself, at their true distance. A query
    ``c`` scores a token ``m`` by ``f(m; c) = Σ_h q_h · k_h`` over all heads, unrotated (Eq 3); the score of the token
    is ``max_c (f(m; c) - max_m' f(m'; c))`` over the queries of the chunk and the middle tokens (Eq 4). The first ``L``
    queries attend to all keys, unless ``dense`` says fewer.

    The choice depends on the calls: a query chunk ends at each multiple of ``query_chunk`` and at the end of each call.
    The sizes in the paper (128 initial tokens, 4096 local tokens, 2048 chosen ones, for windows of 8k and 32k) are the
    defaults at a window of 8192; the paper does not give ``query_chunk``.

    Args:
        initial: ``lI``, the number of initial tokens, always kept (default ``L / 64``).
        local: ``lL``, the number of tokens before the query chunk, always kept (default ``L / 2``).
        top_k: ``k``, the number of tokens chosen between the initial and the local tokens (default ``L / 4``).
        query_chunk: ``lC``, the most queries of a query chunk, which choose together in prefill (default ``L / 16``);
            ``lI + lL + k + lC ≤ L``.
        proximity: ``ε``: a token takes the highest score within ``ε`` tokens of it (Eq 8). The paper measures 0, 1, 3
            and 5 and does not say which it takes elsewhere.
        remap: the positions of initial and chosen tokens: ``"far"``, one far position, as in the paper; ``"slots"``,
            in their order directly before the local tokens (LongHeads' map, with slots of one token); ``"dca"``, the
            positions of DCA.
        far: ``w``, the far position for ``remap="far"`` (default ``lL``).
        score_at: the distance of all tokens in scores; 0 is unrotated. The paper specifies neither ``score_at`` nor
            ``far``.
        share: the heads that choose together: the ``"layer"``, the ``"group"`` of a key head, or each query ``"head"``
            alone.
        reduced: ``d'``, the size of queries and keys that are reduced for scores. It requires a calibration, see
            ``longspan.calibrate``. None takes the size of the calibration, or exact scores without a calibration.
        dense: the first queries that attend to all keys: those of the ``"window"`` (``L``); ``"kept"``, the first
            ``lI + lL + k``, after which queries choose inside the window too, as in the paper; or a number between. The
            default keeps the stock model's results inside the window.
    """

    name = "esa"
    title = "ESA"
    paper = "Wang et al., 2025, arXiv 2502.14477"
    initial: int | None = None
    local: int | None = None
    top_k: int | None = None
    query_chunk: int | None = None
    proximity: int = 1
    remap: Remap = "far"
    far: int | None = None
    score_at: int = 0
    share: Share = "layer"
    reduced: int | None = None
    dense: Dense = "window"

    words = {"share": Share, "remap": Remap}
    least = {
        "initial": 0,
        "proximity": 0,
        "far": 0,
        "score_at": 0,
        "local": 1,
        "top_k": 1,
        "query_chunk": 1,
        "reduced": 1,
    }

    def check(self) -> None:
        self.require("far requires remap='far'", self.far is None or self.remap == "far", "remap")
        check_dense(self, self.dense)

    def defaults(self, window: int) -> dict[str, Any]:
        local = max(window // 2, 1) if self.local is None else self.local
        sizes = {
            "initial": window // 64,
            "local": local,
            "top_k": max(window // 4, 1),
            "query_chunk": max(window // 16, 1),
        }
        return {**sizes, "far": local} if self.remap == "far" else sizes

    def check_window(self, window: int) -> None:
        sizes = "initial", "local", "top_k", "query_chunk"
        self.require(f"{' + '.join(sizes)} ≤ window", sum(self._sizes) <= window, *sizes, window=window)
        self.require("far < window", self.far is None or self.far < window, "far", window=window)
        self.require("score_at < window", self.score_at < window, "score_at", window=window)

    @property
    def _sizes(self) -> list[int]:
        return [resolved(size) for size in (self.initial, self.local, self.top_k, self.query_chunk)]

    selects = True
    call_dependent = True
    uses_calibration = True

    def selection(self, window: int) -> Tokens:
        from longspan.choosing.tokens import Tokens

        initial, local, top_k, query_chunk = self._sizes
        return Tokens(
            initial, local, top_k, query_chunk, self.proximity, self.share, self.score_at, self.plain_queries(window)
        )

    def positions(self, window: int) -> ChosenPositionMap:
        if self.remap == "dca":
            return Chunked.over(self._sizes[3], window)
        return InOrder() if self.far is None else FarPosition(self.far)

    def plain_queries(self, window: int) -> int:
        return dense_queries(self, self.dense, kept=sum(self._sizes[:3]), window=window)

    def check_calibration(self, calibration: Calibration | None) -> None:
        super().check_calibration(calibration)
        if calibration is None:
            if self.reduced is not None:
                raise CalibrationError(
                    f"{self.name} with reduced={self.reduced} requires a calibration; create one with "
                    "longspan.calibrate and pass calibration=, or leave reduced out for exact scores"
                )
            return
        if (self.share, self.score_at) != ("layer", 0):
            raise CalibrationError(
                "reduced scores are summed over all heads of a layer and unrotated, which requires share='layer' and "
                f"score_at=0; leave calibration out for share={self.share!r}, score_at={self.score_at}"
            )
        if self.reduced is not None and calibration.reduced != self.reduced:
            raise CalibrationError(
                f"{self.name} has reduced={self.reduced} and the calibration has reduced={calibration.reduced}; leave "
                "reduced out, or create a calibration of that size"
            )
