"""Axis 2, the position map: at which relative position a query sees a key."""

from longspan.positions.base import ChosenPositionMap, Gather, PositionMap
from longspan.positions.chunked import Chunked
from longspan.positions.far import FarPosition
from longspan.positions.piecewise import Capped, CappedOrFar, GroupedBeyond, RankedAfterSinks, ShiftedBeyond, Unchanged
from longspan.positions.ranked import InOrder

__all__ = [
    "Capped",
    "CappedOrFar",
    "ChosenPositionMap",
    "Chunked",
    "FarPosition",
    "Gather",
    "GroupedBeyond",
    "InOrder",
    "PositionMap",
    "RankedAfterSinks",
    "ShiftedBeyond",
    "Unchanged",
]
