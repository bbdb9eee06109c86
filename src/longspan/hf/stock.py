"""Layers of a cache that are transformers' own: of layers that a model attends by itself."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import DynamicCache, DynamicLayer


class IdleLayer(DynamicLayer):
    """A layer that calls no attention interface, mostly since no text runs it, as the attention to images of Llama 3.2.

    Attention of remote code may fill it all the same; from then on it is as any other layer.
    """

    def crop(self, tokens_to_remove: int) -> None:
        if self.is_initialized:
            super().crop(tokens_to_remove)


def stock_layers(config: PreTrainedConfig, run: Container[int]) -> list[Any]:
    """The layers of a cache of transformers' own; those whose indices are not in ``run`` may keep no tokens."""
    layers = DynamicCache(config=config).layers
    # Before transformers 5.23 layers that share the keys of earlier ones have none.
    layers += [IdleLayer() for _ in range(len(layers), getattr(config, "num_hidden_layers", 0))]
    return [IdleLayer() if type(x) is DynamicLayer and n not in run else x for n, x in enumerate(layers)]


def keeps_nothing(layer: Any) -> bool:
    """Whether a layer of a cache holds none of a text's tokens, nor a state that they went into."""
    # Transformers has a layer of its own for that since 5.23, which is not there to be imported before.
    return type(layer).__name__ == "DummyLayer" or (isinstance(layer, IdleLayer) and not layer.is_initialized)


def keeps_a_state(layer: Any) -> bool:
    """Whether one of transformers' own layers keeps a state that its tokens went into, such as a convolution's."""
    return hasattr(layer, "conv_states")


def stock_tensors(layer: Any) -> list[Tensor | None]:
    """What one of transformers' own layers keeps, of any shape."""
    states = [layer.conv_states, layer.recurrent_states] if keeps_a_state(layer) else []
    tokens = [layer.keys, layer.values] if isinstance(layer, DynamicLayer) and layer.is_initialized else []
    return [*tokens, *(state for each in states for state in each.values())]


def has_forgotten(layer: Any, dropped: int, held: int) -> bool:
    """Whether such a layer cannot go back by ``dropped`` of ``held`` tokens: convolutions alone record theirs."""
    if not layer.record_past or any(state is not None for state in layer.recurrent_states.values()):
        return True
    states = [(state, layer.conv_kernel_size[n]) for n, state in layer.conv_states.items() if state is not None]
    return any(state.shape[-1] < min(size + dropped, held) for state, size in states)
