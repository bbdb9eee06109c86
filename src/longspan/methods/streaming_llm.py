"""StreamingLLM: attention sinks and a recent window, at their ranks among the kept keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from longspan.methods.base import Method, resolved
from longspan.positions import RankedAfterSinks
from longspan.selection import SinksAndRecent


@dataclass(frozen=True, kw_only=True)
class StreamingLLM(Method):
    """Keys ``j < S`` or ``i - j < W``, at their ranks among the kept keys (Xiao et al., 2023).

    Args:
        sinks: ``S``, the number of first tokens (default 4).
        recent: ``W``, the number of recent tokens (default ``L - S``).
    """

    name = "streaming-llm"
    title = "StreamingLLM"
    paper = "Xiao et al., 2023, arXiv 2309.17453"
    sinks: int = 4
    recent: int | None = None

    least = {"sinks": 0, "recent": 1}

    def defaults(self, window: int) -> dict[str, Any]:
        return {"recent": max(window - self.sinks, 1)}

    def check_window(self, window: int) -> None:
        fits = self.sinks + resolved(self.recent) <= window
        self.require("sinks + recent ≤ window", fits, "sinks", "recent", window=window)

    def selection(self, window: int) -> SinksAndRecent:
        return SinksAndRecent(self.sinks, resolved(self.recent))

    def positions(self, window: int) -> RankedAfterSinks:
        return RankedAfterSinks(self.sinks, resolved(self.recent))

    def plain_queries(self, window: int) -> int:
        return self.sinks + resolved(self.recent)
