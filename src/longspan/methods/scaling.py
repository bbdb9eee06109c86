"""Full attention, plain or under scaled angles: PI, NTK-aware, dynamic NTK, YaRN."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from longspan import rope
from longspan.methods.base import Method
from longspan.positions import Unchanged
from longspan.rope import Angles
from longspan.selection import Everything


@dataclass(frozen=True, kw_only=True)
class Full(Method):
    """Every key at its true distance: the stock model, on longspan's store and kernels."""

    name = "full"
    paper = "Su et al., 2021 (RoFormer), arXiv 2104.09864"

    def selection(self, window: int) -> Everything:
        return Everything()

    def positions(self, window: int) -> Unchanged:
        return Unchanged()

    def plain_rows(self, window: int) -> int:
        return window


@dataclass(frozen=True, kw_only=True)
class _Under(Full):
    """Full attention that is named after its angles."""

    kind: ClassVar[type[Angles]]

    def check(self) -> None:
        if not isinstance(self.angles, self.kind):
            kind = self.kind.__name__
            raise ValueError(
                f"{self.name} is full attention under {kind}, which takes angles={kind}(...), not {self.angles}; take "
                "the method of those angles' name, or put them under another method"
            )


@dataclass(frozen=True, kw_only=True)
class FullPI(_Under):
    """Full attention under Position Interpolation."""

    name = "pi"
    paper = "Chen et al., 2023, arXiv 2306.15595"
    kind = rope.PI
    angles: Angles = field(default_factory=rope.PI)


@dataclass(frozen=True, kw_only=True)
class FullNTK(_Under):
    """Full attention under NTK-aware scaling."""

    name = "ntk"
    paper = "bloc97, 2023 (NTK-aware scaled RoPE)"
    kind = rope.NTK
    angles: Angles = field(default_factory=rope.NTK)


@dataclass(frozen=True, kw_only=True)
class FullDynamicNTK(_Under):
    """Full attention under dynamic NTK; decoding equals one call over all tokens, not earlier, shorter calls."""

    name = "dynamic-ntk"
    paper = "emozilla, 2023 (dynamically scaled RoPE)"
    kind = rope.DynamicNTK
    angles: Angles = field(default_factory=rope.DynamicNTK)


@dataclass(frozen=True, kw_only=True)
class FullYaRN(_Under):
    """Full attention under YaRN."""

    name = "yarn"
    paper = "Peng et al., 2023, arXiv 2309.00071"
    kind = rope.YaRN
    angles: Angles = field(default_factory=rope.YaRN)
