"""Rotary positions.

``angles`` has the physics: frequencies, cos and sin by position, and the scaled angles of PI, NTK and YaRN.
``rotation`` applies them to queries and keys as a layer does, and ``layout`` says in which order channels lie in
memory. Shapes are those of ``longspan.bands``.
"""

from longspan.rope.angles import NTK, PI, Angles, DynamicNTK, Table, YaRN, cos_sin
from longspan.rope.angles import CosSin as CosSin
from longspan.rope.layout import Layout as Layout
from longspan.rope.rotation import Norm as Norm
from longspan.rope.rotation import Rope, rotate

__all__ = ["NTK", "PI", "Angles", "DynamicNTK", "Rope", "Table", "YaRN", "cos_sin", "rotate"]
