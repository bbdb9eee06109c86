"""ESA: token-level selection, shared by the heads of a layer and the queries of a piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from longspan.errors import CalibrationError
from longspan.methods.base import Method, require
from longspan.positions import Chunked, FarNear, InOrder, SeesChosen
from longspan.terms import Share

if TYPE_CHECKING:
    from longspan.calibration import Calibration
    from longspan.selection.tokens import Tokens

Remap = Literal["far", "slots", "dca"]


@dataclass(frozen=True, kw_only=True)
class ESA(Method):
    """Efficient Selective Attention (Wang et al., 2025).

    The queries of a piece keep the first tokens and the ``k`` best-scored middle ones, all seen from one far position,
    and the local tokens before the piece and the piece itself, at their true distance. The score of a token is
    ``Σ_h q_h · k_h`` over all heads, unrotated (Eq 4). The first ``L`` queries attend to everything.

    What is chosen depends on how the text arrives: pieces end at multiples of ``piece``, and where a call ends.

    Args:
        initial: ``lI``, first tokens that are always kept (default ``L / 64``).
        local: ``lL``, tokens before the piece that are always kept (default ``L / 2``).
        top_k: ``k``, chosen of those between (default ``L / 4``).
        piece: ``lC``, queries that choose together in prefill (default ``L / 16``); ``lI + lL + k + lC ≤ L``.
        proximity: ``ε``: a token takes the best score within ``ε`` of it (Eq 8).
        remap: at which positions initial and chosen tokens are seen: the paper's one ``"far"`` position, moved together
            in their order before the local ones (``"slots"`` of one token, as LongHeads has them of chunks), or where
            ``"dca"`` has them.
        far: ``w``, that position, for ``remap="far"`` (default ``lL``).
        score_at: the distance at which scores see their tokens; 0 is unrotated. The paper leaves it open, and ``far``
            too; on the bundled model no other pair was better (``benchmarks/results/esa``).
        share: who chooses together: the ``"layer"``, each key head's ``"group"``, or each query ``"head"``.
        reduced: ``d'``, the size that queries and keys are reduced to for scores. It needs a calibration, see
            ``longspan.calibrate``; None takes the calibration's, or exact scores where there is none.
    """

    name = "esa"
    paper = "Wang et al., 2025, arXiv 2502.14477"
    initial: int | None = None
    local: int | None = None
    top_k: int | None = None
    piece: int | None = None
    proximity: int = 1
    remap: Remap = "far"
    far: int | None = None
    score_at: int = 0
    share: Share = "layer"
    reduced: int | None = None

    def check(self) -> None:
        for field, words in (("share", Share), ("remap", Remap)):
            value = getattr(self, field)
            require(f"ESA: {field} is one of {', '.join(get_args(words))}", value in get_args(words), given=value)
        for low, names in (
            (0, ("initial", "proximity", "far", "score_at")),
            (1, ("local", "top_k", "piece", "reduced")),
        ):
            for field in names:
                value = getattr(self, field)
                require(f"ESA: {field} ≥ {low}", value is None or value >= low, **{field: value})
        require("ESA: far is for remap='far'", self.far is None or self.remap == "far", remap=self.remap)

    def defaults(self, window: int) -> dict[str, Any]:
        local = max(window // 2, 1) if self.local is None else self.local
        own = {
            "initial": window // 64,
            "local": local,
            "top_k": max(window // 4, 1),
            "piece": max(window // 16, 1),
        }
        return {**own, "far": local} if self.remap == "far" else own

    def check_window(self, window: int) -> None:
        initial, local, top_k, piece = self._sizes
        require(
            "ESA: initial + local + top_k + piece ≤ window",
            initial + local + top_k + piece <= window,
            initial=initial,
            local=local,
            top_k=top_k,
            piece=piece,
            window=window,
        )
        require("ESA: far < window", self.far is None or self.far < window, far=self.far, window=window)
        require("ESA: score_at < window", self.score_at < window, score_at=self.score_at, window=window)

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        assert self.initial is not None and self.local is not None
        assert self.top_k is not None and self.piece is not None
        return self.initial, self.local, self.top_k, self.piece

    selects = True
    follows_pieces = True
    uses_calibration = True

    def selection(self, window: int) -> Tokens:
        from longspan.selection.tokens import Tokens

        initial, local, top_k, piece = self._sizes
        return Tokens(initial, local, top_k, piece, self.proximity, self.share, self.score_at, window)

    def positions(self, window: int) -> SeesChosen:
        if self.remap == "dca":
            return Chunked.over(self._sizes[3], window)
        return InOrder() if self.far is None else FarNear(self.far)

    def plain_rows(self, window: int) -> int:
        return window

    def check_calibration(self, calibration: Calibration | None) -> None:
        super().check_calibration(calibration)
        if calibration is None:
            if self.reduced is not None:
                raise CalibrationError(
                    f"{self.name} is to score keys reduced to {self.reduced}, and no calibration was given; make one "
                    "with longspan.calibrate and pass calibration=, or leave reduced out for exact scores"
                )
            return
        if (self.share, self.score_at) != ("layer", 0):
            raise CalibrationError(
                "reduced scores are those of all heads of a layer, summed and unrotated; leave calibration out for "
                f"share={self.share!r}, score_at={self.score_at}"
            )
        if self.reduced is not None and calibration.reduced != self.reduced:
            raise CalibrationError(f"{self.name} has reduced={self.reduced} and the calibration {calibration.reduced}")
