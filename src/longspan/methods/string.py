"""STRING: frequent relative positions shifted over the infrequent ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from longspan.methods.base import Method, require
from longspan.positions import ShiftedBeyond
from longspan.selection import Everything


@dataclass(frozen=True, kw_only=True)
class String(Method):
    """``rel = i - j`` if ``i - j < S``, else ``i - j - S + W`` (An et al., 2024).

    Made for use *inside* the window, whose farthest positions a model has seen least. Relative positions stay inside
    the window up to ``L + S - W`` tokens.

    Args:
        shift: ``S`` (default ``L / 3``; the paper takes between ``L / 3`` and ``L / 2``).
        local: ``W``, the neighbourhood kept apart from the shifted positions (default 128, at most ``L / 32``).
    """

    name = "string"
    paper = "An et al., 2024, arXiv 2410.18745"
    shift: int | None = None
    local: int | None = None

    def check(self) -> None:
        if self.shift is not None:
            require("STRING: shift ≥ 1", self.shift >= 1, shift=self.shift)
        if self.local is not None:
            require("STRING: local ≥ 0", self.local >= 0, local=self.local)
        if self.shift is not None and self.local is not None:
            require("STRING: local ≤ shift", self.local <= self.shift, local=self.local, shift=self.shift)

    def defaults(self, window: int) -> dict[str, Any]:
        return {"shift": max(window // 3, 1), "local": min(128, window // 32)}

    def check_window(self, window: int) -> None:
        assert self.shift is not None and self.local is not None
        require("STRING: shift ≤ window", self.shift <= window, shift=self.shift, window=window)
        require("STRING: local ≤ shift", self.local <= self.shift, local=self.local, shift=self.shift)

    def selection(self, window: int) -> Everything:
        return Everything()

    def positions(self, window: int) -> ShiftedBeyond:
        assert self.shift is not None and self.local is not None
        return ShiftedBeyond(self.shift, self.local)

    def plain_rows(self, window: int) -> int:
        assert self.shift is not None
        return self.shift

    def warnings(self, window: int) -> list[str]:
        assert self.shift is not None and self.local is not None
        reach = window + self.shift - self.local
        return [f"STRING keeps positions inside the window up to {reach} tokens; beyond, they leave it"]
