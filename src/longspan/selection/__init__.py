"""Axis 1, the selection: which keys a query attends to."""

from longspan.selection.window import Everything, SameChunk, Selection, SinksAndRecent

__all__ = ["Everything", "SameChunk", "Selection", "SinksAndRecent"]
