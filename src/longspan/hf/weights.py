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
from longspan.hf.parallel import is_distributed, whole

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of an object without a name, which another process has elsewhere


def named_weights(model: PreTrainedModel) -> list[tuple[str, Tensor]]:
    """A model's weights, each of any shape, with their names, in one order; of a quantised one its parts.

    Raises:
        LongspanError: a weight is not in memory, or is no tensor, so that the model cannot be told from another.
    """
    weights: dict[str, object] = dict(sorted(model.state_dict().items()))
    found: list[tuple[str, Tensor]] = []
    for name, weight in weights.items():
        if not isinstance(weight, Tensor):
            raise LongspanError(
                f"{name} is no tensor but a {type(weight).__name__} (as in models that torch.ao quantised), so the "
                "model's weights cannot be hashed; load the model without that, or with a quantisation of transformers"
            )
        if weight.device.type == "meta":
            raise LongspanError(
                f"{name} is not in memory (the model is offloaded), so its weights cannot be hashed; load it whole"
            )
        found += [(name, weight)] if is_distributed(weight) else _plain(name, weight)
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
