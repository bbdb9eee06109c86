"""The weights of a model."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.errors import LongspanError
from longspan.hf.parallel import whole


def named_weights(model: PreTrainedModel) -> list[tuple[str, Tensor]]:
    """A model's weights, each of any shape, with their names, in one order.

    Raises:
        LongspanError: a weight is not in memory, or is no tensor, so that the model cannot be told from another.
    """
    weights: dict[str, object] = dict(sorted(model.state_dict().items()))
    found = []
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
        found.append((name, weight))
    return found


def weights_hash(model: PreTrainedModel) -> str:
    """SHA-256 over the names, types and bytes of a model's weights; all processes that have a part of them call it.

    Raises:
        LongspanError: see ``named_weights``.
    """
    digest = hashlib.sha256()
    for name, part in named_weights(model):
        weight = whole(part)
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
