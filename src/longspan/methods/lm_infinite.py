"""LM-Infinite: the first tokens and a recent window, distances capped at the trained window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from longspan.methods.base import Method, require
from longspan.positions import Capped
from longspan.selection import SinksAndRecent


@dataclass(frozen=True, kw_only=True)
class LMInfinite(Method):
    """Keys ``j < S`` or ``i - j < W``, at ``min(i - j, cap)`` (Han et al., 2023), without its optional middle tokens.

    Args:
        sinks: ``S`` (default 10).
        recent: ``W`` (default ``L``).
        cap: the largest distance (default ``L``).
    """

    name = "lm-infinite"
    paper = "Han et al., 2023, arXiv 2308.16137"
    sinks: int = 10
    recent: int | None = None
    cap: int | None = None

    def check(self) -> None:
        require("LM-Infinite: sinks ≥ 0", self.sinks >= 0, sinks=self.sinks)
        if self.recent is not None:
            require("LM-Infinite: recent ≥ 1", self.recent >= 1, recent=self.recent)
        if self.cap is not None:
            require("LM-Infinite: cap ≥ 1", self.cap >= 1, cap=self.cap)

    def defaults(self, window: int) -> dict[str, Any]:
        return {"recent": window, "cap": window}

    def check_window(self, window: int) -> None:
        assert self.recent is not None and self.cap is not None
        require("LM-Infinite: recent ≤ window", self.recent <= window, recent=self.recent, window=window)
        require("LM-Infinite: cap ≤ window", self.cap <= window, cap=self.cap, window=window)

    @property
    def selection(self) -> SinksAndRecent:
        assert self.recent is not None
        return SinksAndRecent(self.sinks, self.recent)

    @property
    def positions(self) -> Capped:
        assert self.cap is not None
        return Capped(self.cap)

    def plain_rows(self, window: int) -> int:
        assert self.recent is not None and self.cap is not None
        # Row i loses key S once i - S reaches W, and shortens a distance once i exceeds the cap.
        return min(self.sinks + self.recent, self.cap + 1, window)
