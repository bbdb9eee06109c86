"""Which weights a model has."""

from __future__ import annotations

import hashlib

import torch
from transformers import PreTrainedModel

from longspan.errors import LongspanError
from longspan.hf.parallel import whole


def weights_hash(model: PreTrainedModel) -> str:
    """SHA-256 over the names, types and bytes of a model's weights; all processes that have a part of them call it."""
    digest = hashlib.sha256()
    for name, part in sorted(model.state_dict().items()):
        weight = whole(part)
        if weight.device.type == "meta":
            raise LongspanError(
                f"{name} is not in memory (the model is offloaded), so its weights cannot be hashed; load it whole"
            )
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
