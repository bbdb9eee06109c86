"""Self-Extend: true distances for near keys, grouped positions for all others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from longspan.errors import check_count
from longspan.methods.base import Method, resolved
from longspan.positions import GroupedBeyond
from longspan.selection import Everything


@dataclass(frozen=True, kw_only=True)
class SelfExtend(Method):
    """``rel = i - j`` if ``i - j < W``, else ``i // G - j // G + W - W // G`` (Jin et al., 2024).

    Args:
        group: ``G`` (default: the smallest that keeps ``rel`` inside the window at ``target_length``).
        neighbors: ``W``, the number of near keys (default ``L / 4``).
        target_length: the text length to support, in tokens (default ``4 L``); it only sets the default of ``group``.
    """

    name = "self-extend"
    title = "Self-Extend"
    paper = "Jin et al., 2024, arXiv 2401.01325"
    group: int | None = None
    neighbors: int | None = None
    target_length: int | None = None

    least = {"group": 1, "neighbors": 1, "target_length": 1}

    def check(self) -> None:
        one = self.group is None or self.target_length is None
        self.require("pass group or target_length, not both", one, "group", "target_length")

    def resolve(self, window: int) -> Self:
        if self.group is not None:
            return super().resolve(window)
        window = check_count("window", window)
        # The target length serves only to set the group.
        return replace(self, **self._sizes(window), target_length=None).resolve(window)

    def reaching(self, length: int) -> Self:
        method = super().reaching(length)
        needs_target = self.group is None and self.target_length is None
        return replace(method, target_length=length) if needs_target else method

    def _sizes(self, window: int) -> dict[str, Any]:
        near = max(window // 4, 1) if self.neighbors is None else resolved(self.neighbors)
        self.require("neighbors ≤ window - 1", near < window, neighbors=near, window=window)
        target = 4 * window if self.target_length is None else self.target_length
        group = max(1, -(-(target - near) // (window - near)))
        while (target - 1) // group + near - near // group > window - 1 and target > window:
            group += 1
            rule = "some group keeps target_length inside the window"
            self.require(rule, group <= target, target_length=target, neighbors=near, window=window)
        return {"group": group, "neighbors": near}

    def defaults(self, window: int) -> dict[str, Any]:
        return {"neighbors": max(window // 4, 1)}

    def check_window(self, window: int) -> None:
        self.require("neighbors ≤ window", resolved(self.neighbors) <= window, "neighbors", window=window)

    def selection(self, window: int) -> Everything:
        return Everything()

    def positions(self, window: int) -> GroupedBeyond:
        return GroupedBeyond(resolved(self.neighbors), resolved(self.group))

    def longest(self, window: int) -> int:
        group, near = resolved(self.group), resolved(self.neighbors)
        return group * (window - near + near // group)

    def warnings(self, window: int) -> list[str]:
        longest = self.longest(window)
        reach = f"Self-Extend keeps positions inside the window up to {longest} tokens"
        return [f"{reach}; pass length or target_length for more"]

    def plain_queries(self, window: int) -> int:
        return window if self.group == 1 else resolved(self.neighbors)
