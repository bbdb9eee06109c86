"""Axis 2, the position map: at which relative position a query sees a key."""

from longspan.positions.chunked import Chunked
from longspan.positions.near_far import Capped, GroupedBeyond, PositionMap, RankedAfterSinks, ShiftedBeyond, Unchanged

__all__ = [
    "Capped",
    "Chunked",
    "GroupedBeyond",
    "PositionMap",
    "RankedAfterSinks",
    "ShiftedBeyond",
    "Unchanged",
]
