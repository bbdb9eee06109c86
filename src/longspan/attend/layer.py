"""A layer's inputs to its attention besides queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from longspan.attend.state import ForwardState
from longspan.rope import Rope


@dataclass(slots=True)
class LayerCall:
    """One call of one layer.

    Attributes:
        rope: the layer's own rotation.
        scale: multiplies every score.
        padding: how many padding tokens each row of the batch begins with, those in the store counted in.
        softcap: ``c`` in ``c · tanh(score / c)``, or None.
        sinks: ``[H]``, logits in the softmax's denominator, or None.
        number: the layer's number, for methods and calibrations that tell layers apart.
        state: what the layers of this forward share.
        row: of the batch, which these rows begin at.
    """

    rope: Rope
    scale: float
    padding: tuple[int, ...]
    softcap: float | None = None
    sinks: Tensor | None = None
    number: int = 0
    state: ForwardState = field(default_factory=ForwardState)
    row: int = 0
