"""What choosing costs, counted from the definitions: operations of a decoded token and bytes of the cache (ESA).

In a layer with ``d_H`` query channels, one token that attends to ``n`` keys takes ``2 n d_H`` multiplications and
additions: ``n d_H`` for the scores and as many for the values. ESA scores the ``N - l_I - l_L`` tokens between the
first and the local ones by ``d'`` numbers each, and attends to ``l_I + l_L + k``. (What reducing the query itself takes
does not grow with the text and is left out.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel


@dataclass(frozen=True)
class Shape:
    """A layer: ``channels`` of its queries ``d_H``, ``kv_channels`` of its keys ``d_Hkv``."""

    channels: int
    kv_channels: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> Shape:
        """That of a model's layers."""
        config: Any = model.config.get_text_config()
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(heads * size, (getattr(config, "num_key_value_heads", None) or heads) * size)


@dataclass(frozen=True)
class Sizes:
    """ESA's parameters in tokens, and ``d'`` in numbers."""

    initial: int
    local: int
    top_k: int
    reduced: int


def operation_ratio(total: int, shape: Shape, sizes: Sizes) -> float:
    """Operations of one decoded token under ESA over those of full attention, ``total`` tokens held.

    ``((N - l_I - l_L) d' + 2 (l_I + l_L + k) d_H) / (2 N d_H)``, which tends to ``d' / (2 d_H)``. 1 while ESA attends
    to everything and scores nothing.
    """
    attended = sizes.initial + sizes.local + sizes.top_k
    if total <= attended:
        return 1.0
    return counted_ratio(total, total - sizes.initial - sizes.local, attended, shape, sizes.reduced)


def counted_ratio(total: int, scored: float, attended: float, shape: Shape, reduced: int) -> float:
    """The same from what was counted: tokens scored by ``reduced`` numbers each, and tokens attended to."""
    return (scored * reduced + 2 * attended * shape.channels) / (2 * total * shape.channels)


def cache_overhead(shape: Shape, reduced: int) -> float:
    """Bytes of the reduced keys over those of keys and values: ``d' / (2 d_Hkv)``, in one dtype."""
    return reduced / (2 * shape.kv_channels)
