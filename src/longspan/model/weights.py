"""The weights of a model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedModel

from longspan.errors import LongspanError
from longspan.model.parallel import is_distributed, whole

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of an object without a name, which another process has elsewhere


def named_weights(model: PreTrainedModel) -> list[tuple[str, Tensor]]:
    """A model's weights, each of any shape, with their names, in one order; of a quantised one its parts.

    Raises:
        LongspanError: a weight is not in memory, or is no tensor, so that the model cannot be told from another.
    """
    weights: dict[str, object] = dict(sorted(_state(model).items()))
    found: list[tuple[str, Tensor]] = []
    for name, weight in weights.items():
        if not isinstance(weight, Tensor):
            raise LongspanError(
                f"{name} is not a tensor but a {type(weight).__name__} (as in models that torch.ao quantised), so the "
                "model's weights cannot be hashed; load the model without that, or with a quantisation of transformers"
            )
        if weight.device.type == "meta":
            raise LongspanError(
                f"{name} is not in memory (the model is offloaded), so its weights cannot be hashed; load it whole"
            )
        found += [(name, weight)] if is_distributed(weight) else _plain(name, weight)
    return found


def _state(model: PreTrainedModel) -> dict[str, object]:
    """``state_dict``; of a model whose 4-bit weights bitsandbytes has packed for a CPU, what that consists of.

    ``state_dict`` of those would unpack them in place, without their scales: the next forward packs them once more and
    computes with scales in another order.
    """
    states = {name: getattr(weight, "quant_state", None) for name, weight in model.named_parameters()}
    if not any(getattr(state, "packing_format_for_cpu", False) for state in states.values()):
        return dict(model.state_dict())
    found: dict[str, object] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, state in states.items():
        while state is not None:  # of double quantisation, the state of the scales, too
            name = f"{name} of {state.quant_type or 'scales'}"
            parts = {part: getattr(state, part, None) for part in ("absmax", "code", "offset")}
            found |= {f"{name}.{part}": tensor for part, tensor in parts.items() if isinstance(tensor, Tensor)}
            state = state.state2
    return found


def weights_hash(model: PreTrainedModel) -> str:
    """SHA-256 over the names, types and bytes of a model's weights; all processes that have a part of them call it.

    Raises:
        LongspanError: see ``named_weights``.
    """
    digest = hashlib.sha256()
    for name, part in named_weights(model):
        for inner, weight in _plain(name, whole(part).detach()):
            digest.update(f"{inner} {weight.dtype} {tuple(weight.shape)}".encode())
            digest.update(weight.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _plain(name: str, weight: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a weight consists of, each of any shape, with names: one of torchao has numbers and scales.

    The names have what its products do with them, too, such as quantising their inputs.
    """
    if not is_traceable_wrapper_subclass(weight):
        yield name, weight
        return
    parts, how = weight.__tensor_flatten__()
    kind = f"{type(weight).__name__} {_ADDRESS.sub('', repr(how))}"
    for part in parts:
        yield from _plain(f"{name}.{part} of {kind}", getattr(weight, part))
