"""ReRoPE: relative positions capped at ``w``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from longspan.methods.base import Method, resolved
from longspan.positions import Capped
from longspan.selection import Everything


@dataclass(frozen=True, kw_only=True)
class ReRoPE(Method):
    """``rel = min(i - j, w)`` (Su, 2023).

    Args:
        w: the largest relative position (default ``L / 2``).
    """

    name = "rerope"
    title = "ReRoPE"
    paper = "Su, 2023 (ReRoPE), github.com/bojone/rerope"
    w: int | None = None

    least = {"w": 1}

    def defaults(self, window: int) -> dict[str, Any]:
        return {"w": max(window // 2, 1)}

    def check_window(self, window: int) -> None:
        self.require("w ≤ window - 1", resolved(self.w) <= max(window - 1, 1), "w", window=window)

    def selection(self, window: int) -> Everything:
        return Everything()

    def positions(self, window: int) -> Capped:
        return Capped(resolved(self.w))

    def plain_queries(self, window: int) -> int:
        return resolved(self.w) + 1
