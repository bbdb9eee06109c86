"""Indices beside a layer's keys and values to score them by: summaries of chunks and blocks, reduced keys."""

from longspan.index.blocks import BlockIndex, BlockLayout
from longspan.index.chunks import ChunkIndex
from longspan.index.ranks import AcrossRanks
from longspan.index.rows import equal_runs
from longspan.index.saved import Entries, SavableIndex, SavedIndex
from longspan.index.tokens import TokenIndex, summed_queries

__all__ = [
    "AcrossRanks",
    "BlockIndex",
    "BlockLayout",
    "ChunkIndex",
    "Entries",
    "SavableIndex",
    "SavedIndex",
    "TokenIndex",
    "equal_runs",
    "summed_queries",
]
