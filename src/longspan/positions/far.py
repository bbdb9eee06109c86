"""ESA's position map: local keys at their true distance, all others at one far position."""

from __future__ import annotations

from dataclasses import dataclass

from longspan.bands import AlwaysKept, Band, Origin
from longspan.positions.base import AtOneDistance, constant, near


@dataclass(frozen=True)
class FarPosition(AtOneDistance):
    """Local keys at their true distance, all others at ``far``: the query at ``far``, the key unrotated."""

    far: int

    def bands(self, kept: AlwaysKept) -> tuple[Band, ...]:
        if not kept.head:
            return (near(kept.border),)
        return Band("initial", constant(self.far), Origin(), kept.intervals[0]), near(kept.border)
