"""Kept keys moved together in their order, as if nothing lay between them: LongHeads' slots, of chunks or of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longspan.bands import AlwaysKept, Band, Index, Interval, KeyMap, Modulo, Origin
from longspan.deferred import torch
from longspan.positions.base import ChosenPositionMap, Gather, near

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class InOrder(ChosenPositionMap):
    """A key is seen at its rank: how many kept keys come after it, up to the query.

    If a query chooses chunks, keys are stored once, at ``j mod size``, and the query is rotated to the rank of each
    chunk: the kept chunks take slots ``0 ..`` in their order (LongHeads, Lu et al., 2024, section 2.3). If queries
    choose single tokens, those are stored unrotated and local tokens at their index. What a query chunk chose is
    rotated to its rank once it is gathered, as no rotation that is stored beforehand could serve every rank.
    """

    rotates_gathered = True
    rotation_remedy = "use a position map with one far position (remap='far' for esa and longheads)"

    def bands(self, kept: AlwaysKept) -> tuple[Band, ...]:
        def first(i: Tensor) -> Tensor:
            border = kept.border(i)
            return border.clamp(max=kept.head) + kept.chosen(i) + i - border

        unit = kept.unit
        if unit is None:
            local: tuple[Band, ...] = (near(kept.border),)
        else:
            assert kept.span is not None
            back = range((kept.span - 1) // unit + 1)
            local = tuple(_chunk(unit, d) for d in (reversed(back) if kept.most else back))
        if not kept.head:
            return local
        return (Band("first", first, Index() if unit is None else Modulo(unit), kept.intervals[0]), *local)

    def reach(self, kept: AlwaysKept) -> int | None:
        return None if kept.span is None else kept.most + kept.span - 1

    def chosen_keys(self, kept: AlwaysKept) -> KeyMap:
        return Origin() if kept.unit is None else Modulo(kept.unit)

    def places(self, i: Tensor, count: int, kept: AlwaysKept) -> Tensor:
        return torch.arange(count, 0, -1) * (kept.unit or 1) + (i - kept.border(i))[:, None]

    def tokens(self, i: Tensor, tokens: Tensor, kept: AlwaysKept) -> Gather:
        count = tokens.shape[-1]
        return Gather((count + i - kept.border(i),), k_pos=torch.arange(count))


def _chunk(size: int, back: int) -> Band:
    """The chunk ``back`` before the query's own, at its true distance."""

    def begins(i: Tensor) -> Tensor:
        return (i // size - back) * size

    keys = Interval(lambda i: begins(i).clamp(min=0), lambda i: (begins(i) + size).clamp(min=0))
    return Band(f"back-{back}", lambda i: i - begins(i), Modulo(size), keys)
