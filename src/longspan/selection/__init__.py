"""Axis 1, the selection: which keys a query attends to.

Selections that choose keys by looking at them are in ``blocks``, ``chunks``, ``tokens`` and ``top_k_tokens``, each with
its selector; those come with the kernels, which a method loads when it makes its selection.
"""

from longspan.selection.base import Choosing, Selection
from longspan.selection.window import Everything, SinksAndRecent

__all__ = ["Choosing", "Everything", "Selection", "SinksAndRecent"]
