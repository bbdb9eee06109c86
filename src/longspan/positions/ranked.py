"""Kept keys moved together in their order, as if nothing lay between them: LongHeads' slots, of chunks or of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longspan.bands import AlwaysKept, Band, Index, IndexMap, Interval, KeyMap, Modulo, Origin
from longspan.deferred import torch
from longspan.positions.base import ChosenPositionMap, Gather, near

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class InOrder(ChosenPositionMap):
    """A key is seen at its rank: how many kept keys come after it, up to the query.

    If a query chooses chunks, keys are stored once, and the query is rotated to the rank of each chunk: the kept chunks
    take slots ``0 ..`` in their order (LongHeads, Lu et al., 2024, section 2.3). If queries choose single tokens, those
    are stored unrotated and local tokens at their index. What a query chunk chose is rotated to its rank once it is
    gathered, as no rotation that is stored beforehand could serve every rank.

    Args:
        block: how many chunks a key's stored position counts over: key ``j`` is stored at ``j mod (block · size)``. The
            relative positions are the same for every ``block``. A query has one rotation for the local keys of a block,
            so that short chunks call for more than one.
    """

    block: int = 1

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
            size = self.block * unit
            aligned = unit if kept.most else size  # where the first local key begins
            back = range((kept.span - aligned + size - 1) // size + 1)
            local = tuple(_block(size, d, kept.border) for d in (reversed(back) if kept.most else back))
        if not kept.head:
            return local
        return (Band("first", first, self._stored(kept), kept.intervals[0]), *local)

    def reach(self, kept: AlwaysKept) -> int | None:
        return None if kept.span is None else kept.most + kept.span - 1

    def chosen_keys(self, kept: AlwaysKept) -> KeyMap:
        return Origin() if kept.unit is None else self._stored(kept)

    def stored_in(self, kept: AlwaysKept) -> int:
        return 1 if kept.unit is None else self.block

    def _stored(self, kept: AlwaysKept) -> KeyMap:
        return Index() if kept.unit is None else Modulo(self.block * kept.unit)

    def places(self, i: Tensor, count: int, kept: AlwaysKept) -> Tensor:
        return torch.arange(count, 0, -1) * (kept.unit or 1) + (i - kept.border(i))[:, None]

    def tokens(self, i: Tensor, tokens: Tensor, kept: AlwaysKept) -> Gather:
        count = tokens.shape[-1]
        return Gather((count + i - kept.border(i),), k_pos=torch.arange(count))


def _block(size: int, back: int, border: IndexMap) -> Band:
    """The local keys in the block ``back`` before the query's own, at their true distance."""

    def begins(i: Tensor) -> Tensor:
        return (i // size - back) * size

    keys = Interval(lambda i: torch.maximum(begins(i), border(i)), lambda i: torch.maximum(begins(i) + size, border(i)))
    return Band(f"back-{back}", lambda i: i - begins(i), Modulo(size), keys)
