"""STRING: frequent relative positions replace the infrequent far ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from longspan.methods.base import Method, resolved
from longspan.positions import ShiftedBeyond
from longspan.selection import Everything


@dataclass(frozen=True, kw_only=True)
class String(Method):
    """``rel = i - j`` if ``i - j < S``, else ``i - j - S + W`` (An et al., 2024).

    It is for texts *inside* the window: a model saw the farthest positions least in training. Relative positions stay
    inside the window up to ``L + S - W`` tokens.

    Args:
        shift: ``S``, the shift of far positions (default ``L / 3``; the paper uses ``L / 3`` to ``L / 2``).
        local: ``W``, the local positions that shifted keys do not take (default 128, at most ``L / 32``).
    """

    name = "string"
    title = "STRING"
    paper = "An et al., 2024, arXiv 2410.18745"
    shift: int | None = None
    local: int | None = None

    least = {"shift": 1, "local": 0}

    def check(self) -> None:
        if self.shift is not None and self.local is not None:
            self.require("local ≤ shift", self.local <= self.shift, "local", "shift")

    def defaults(self, window: int) -> dict[str, Any]:
        return {"shift": max(window // 3, 1), "local": min(128, window // 32)}

    def check_window(self, window: int) -> None:
        self.require("shift ≤ window", resolved(self.shift) <= window, "shift", window=window)

    def selection(self, window: int) -> Everything:
        return Everything()

    def positions(self, window: int) -> ShiftedBeyond:
        return ShiftedBeyond(resolved(self.shift), resolved(self.local))

    def plain_queries(self, window: int) -> int:
        return resolved(self.shift)

    def longest(self, window: int) -> int:
        return window + resolved(self.shift) - resolved(self.local)

    def warnings(self, window: int) -> list[str]:
        return [f"STRING keeps positions inside the window up to {self.longest(window)} tokens; longer texts exceed it"]
