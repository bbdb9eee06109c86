"""Costs of choosing by the count of ESA's appendix A: operations of a decoded token, and bytes of the cache.

In a layer with ``d_H`` query channels and ``H`` heads, one token that attends to ``n`` keys takes ``(4 d_H + 3 H) n``
operations: ``2 d_H n`` for the scores, as many for the values, ``3 H n`` for the softmax. ESA reduces one query and one
key to ``d'`` numbers (``4 d_H d' + 2 d'``), scores the ``l_M`` tokens between the first and the local ones by them
(``(2 d' + 1) l_M``), and attends to ``l_I + l_L + k`` and the token itself. Scores in full take the ``d_Hkv`` channels
of a key as ``d'``, and reduce nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel


@dataclass(frozen=True)
class Shape:
    """A layer: ``channels`` of its queries ``d_H``, ``kv_channels`` of its keys ``d_Hkv``, ``heads`` of its queries."""

    channels: int
    kv_channels: int
    heads: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> Shape:
        """That of a model's layers."""
        config: Any = model.config.get_text_config()
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(heads * size, (getattr(config, "num_key_value_heads", None) or heads) * size, heads)

    @property
    def a_key(self) -> int:
        """Operations that attending to one key takes."""
        return 4 * self.channels + 3 * self.heads


@dataclass(frozen=True)
class Sizes:
    """ESA's parameters in tokens, and ``d'`` in numbers; None: scores are in full."""

    initial: int
    local: int
    top_k: int
    reduced: int | None


def operation_ratio(total: int, shape: Shape, sizes: Sizes) -> float:
    """Operations of one decoded token under ESA over those of full attention, ``total`` tokens held, itself included.

    1 while ESA attends to everything and scores nothing; ``limit`` as the text grows.
    """
    attended = sizes.initial + sizes.local + sizes.top_k + 1
    if total <= attended:
        return 1.0
    return counted_ratio(total, total - sizes.initial - sizes.local - 1, attended, shape, sizes.reduced)


def counted_ratio(total: int, scored: float, attended: float, shape: Shape, reduced: int | None) -> float:
    """The same from what was counted: tokens scored by ``reduced`` numbers each, or in full, and tokens attended to."""
    reducing = 4 * shape.channels * reduced + 2 * reduced if scored and reduced is not None else 0
    size = shape.kv_channels if reduced is None else reduced
    return (reducing + (2 * size + 1) * scored + shape.a_key * attended) / (shape.a_key * total)


def limit(shape: Shape, reduced: int) -> float:
    """Eq 9, what the ratio tends to: ``(2 d' + 1) / (4 d_H + 3 H)``."""
    return (2 * reduced + 1) / shape.a_key


def cache_overhead(shape: Shape, reduced: int) -> float:
    """Bytes of the reduced keys over those of keys and values: ``d' / (2 d_Hkv)``, in one dtype."""
    return reduced / (2 * shape.kv_channels)
