"""What a layer keeps besides keys and values to score them by: summaries of chunks and blocks, reduced keys."""

from longspan.index.blocks import BlockIndex
from longspan.index.chunks import ChunkIndex
from longspan.index.rows import equal_runs
from longspan.index.saved import Entries, SavableIndex, SavedIndex
from longspan.index.tokens import TokenIndex, exact_asked, exact_scores

__all__ = [
    "BlockIndex",
    "ChunkIndex",
    "Entries",
    "SavableIndex",
    "SavedIndex",
    "TokenIndex",
    "equal_runs",
    "exact_asked",
    "exact_scores",
]
