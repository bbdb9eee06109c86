"""LM-Infinite: the first tokens and a recent window, at distances capped at the trained window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longspan.methods.base import Method, resolved
from longspan.positions import CappedOrFar
from longspan.selection import SinksAndRecent

if TYPE_CHECKING:
    from longspan.choosing.top_k_tokens import TopKTokens


@dataclass(frozen=True, kw_only=True)
class LMInfinite(Method):
    """Keys ``j < S`` or ``i - j < W``, at ``min(i - j, cap)``, and optional middle tokens (Han et al., 2023).

    With ``middle_top_k``, each query of each head also keeps that many of the tokens ``S <= j <= i - W``: those with
    the largest logits at the distance ``middle_at``, which is also their position in attention. The paper has this
    option with 5 tokens in higher layers. In the authors' code only the last query of a call chooses; in longspan
    every query does, so scores take time quadratic in the length.

    Args:
        sinks: ``S``, the number of first tokens (default 10).
        recent: ``W``, the number of recent tokens (default ``L``).
        cap: the largest distance (default ``L``).
        middle_top_k: the number of middle tokens (default 0).
        middle_at: the distance of middle tokens (default ``L / 2``).
        from_layer: the first layer that keeps middle tokens, counted from 0 (default 4, which suits the 32 and more
            layers of the paper's models; pass a smaller number for a model with fewer layers).
    """

    name = "lm-infinite"
    title = "LM-Infinite"
    paper = "Han et al., 2023, arXiv 2308.16137"
    sinks: int = 10
    recent: int | None = None
    cap: int | None = None
    middle_top_k: int = 0
    middle_at: int | None = None
    from_layer: int = 4

    least = {"sinks": 0, "recent": 1, "cap": 1, "middle_top_k": 0, "middle_at": 0, "from_layer": 0}

    def defaults(self, window: int) -> dict[str, Any]:
        return {"recent": window, "cap": window, "middle_at": window // 2}

    def check_window(self, window: int) -> None:
        self.require("recent ≤ window", resolved(self.recent) <= window, "recent", window=window)
        self.require("cap ≤ window", resolved(self.cap) <= window, "cap", window=window)
        self.require("middle_at < window", resolved(self.middle_at) < window, "middle_at", window=window)

    @property
    def selects(self) -> bool:
        return self.middle_top_k > 0

    def selection(self, window: int) -> SinksAndRecent | TopKTokens:
        from longspan.choosing.top_k_tokens import TopKTokens

        recent = resolved(self.recent)
        if not self.selects:
            return SinksAndRecent(self.sinks, recent)
        return TopKTokens(self.sinks, recent, self.middle_top_k, resolved(self.middle_at), self.from_layer)

    def positions(self, window: int) -> CappedOrFar:
        return CappedOrFar(resolved(self.cap), resolved(self.middle_at))

    def plain_queries(self, window: int) -> int:
        # Query i drops key S once i - S reaches W, and caps a distance once i exceeds the cap.
        return min(self.sinks + resolved(self.recent), resolved(self.cap) + 1, window)
