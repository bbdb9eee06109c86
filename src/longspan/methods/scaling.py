"""Full attention, with the model's angles or scaled ones: PI, NTK-aware, dynamic NTK, YaRN."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from longspan import rope
from longspan.errors import LongspanError
from longspan.methods.base import Method
from longspan.positions import Unchanged
from longspan.rope import Angles
from longspan.selection import Everything


@dataclass(frozen=True, kw_only=True)
class Full(Method):
    """Every key at its true distance: the stock model, on longspan's cache and kernels."""

    name = "full"
    paper = "Su et al., 2021 (RoFormer), arXiv 2104.09864"
    extends = False

    def selection(self, window: int) -> Everything:
        return Everything()

    def positions(self, window: int) -> Unchanged:
        return Unchanged()

    def plain_queries(self, window: int) -> int:
        return window

    def longest(self, window: int) -> int | None:
        # Without scaled angles the results beyond the window are the baseline of every comparison: no limit.
        return self.angles.longest(window)


@dataclass(frozen=True, kw_only=True)
class _ScaledFull(Full):
    """Full attention with scaled angles, after which the method is named."""

    scaling: ClassVar[type[Angles]]

    def check(self) -> None:
        if not isinstance(self.angles, self.scaling):
            scaling = self.scaling.__name__
            raise LongspanError(
                f"{self.name} is full attention with {scaling} angles: angles must be {scaling}(...), not "
                f"{self.angles}; use the method named after those angles, or pass them to another method"
            )


@dataclass(frozen=True, kw_only=True)
class FullPI(_ScaledFull):
    """Full attention with Position Interpolation."""

    name = "pi"
    paper = "Chen et al., 2023, arXiv 2306.15595"
    scaling = rope.PI
    angles: Angles = field(default_factory=rope.PI)


@dataclass(frozen=True, kw_only=True)
class FullNTK(_ScaledFull):
    """Full attention with NTK-aware scaling."""

    name = "ntk"
    paper = "bloc97, 2023 (NTK-aware scaled RoPE)"
    scaling = rope.NTK
    angles: Angles = field(default_factory=rope.NTK)


@dataclass(frozen=True, kw_only=True)
class FullDynamicNTK(_ScaledFull):
    """Full attention with dynamic NTK; decoding equals one call over all tokens, not earlier, shorter calls."""

    name = "dynamic-ntk"
    paper = "emozilla, 2023 (dynamically scaled RoPE)"
    scaling = rope.DynamicNTK
    angles: Angles = field(default_factory=rope.DynamicNTK)


@dataclass(frozen=True, kw_only=True)
class FullYaRN(_ScaledFull):
    """Full attention with YaRN."""

    name = "yarn"
    paper = "Peng et al., 2023, arXiv 2309.00071"
    scaling = rope.YaRN
    angles: Angles = field(default_factory=rope.YaRN)
