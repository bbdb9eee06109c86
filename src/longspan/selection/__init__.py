"""Axis 1, the selection: which keys a query attends to, by indices alone.

Selections that choose keys by looking at them are in ``longspan.choosing``.
"""

from longspan.selection.base import Selection
from longspan.selection.window import Everything, SinksAndRecent

__all__ = ["Everything", "Selection", "SinksAndRecent"]
