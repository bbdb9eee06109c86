"""The cost of choosing: stated by each selection, counted by ``longspan.doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class LayerSizes(Protocol):
    """``H``, ``Hkv`` and ``D`` of a layer, and the bytes of a stored number."""

    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def key_dim(self) -> int: ...
    @property
    def itemsize(self) -> int: ...


@dataclass(frozen=True)
class UnitCost:
    """The cost of one unit (token, chunk or block) that a query chooses from, in one layer.

    Attributes:
        stored: bytes of its entry in the index; 0 if scores are made from the stored keys.
        read: bytes that a single token reads to score it.
        products: multiplications that score it for one query of a prompt.
    """

    stored: int
    read: int
    products: float


def summary_bytes(layer: LayerSizes) -> int:
    """Bytes of a vector of a key's size in fp32, or wider if keys are: indices keep summaries so."""
    return layer.key_dim * max(layer.itemsize, 4)
