"""Rotary positions.

``angles`` has the physics: frequencies, cos and sin by position, and the scaled angles of PI, NTK and YaRN.
``rotation`` applies them to queries and keys as a layer does, and ``layout`` says in which order channels lie in
memory. Shapes are those of ``longspan.bands``.
"""

from longspan.rope.angles import NTK, PI, Angles, CosSin, DynamicNTK, Table, YaRN, cos_sin
from longspan.rope.layout import Layout
from longspan.rope.rotation import Norm, Rope, rotate

__all__ = [
    "NTK",
    "PI",
    "Angles",
    "CosSin",
    "DynamicNTK",
    "Layout",
    "Norm",
    "Rope",
    "Table",
    "YaRN",
    "cos_sin",
    "rotate",
]
