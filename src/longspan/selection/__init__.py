"""Axis 1, the selection: which keys a query attends to."""

from longspan.selection.base import Choosing, Selection
from longspan.selection.blocks import Blocks
from longspan.selection.chunks import Chunks
from longspan.selection.middle import Middle
from longspan.selection.selector import Selector, Share
from longspan.selection.tokens import Tokens
from longspan.selection.window import Everything, SameChunk, SinksAndRecent

__all__ = [
    "Blocks",
    "Choosing",
    "Chunks",
    "Everything",
    "Middle",
    "SameChunk",
    "Selection",
    "Selector",
    "Share",
    "SinksAndRecent",
    "Tokens",
]
