"""Compare outputs of a model: on which tokens, and within which error."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.hf.placement import runs_on


def some_tokens(model: PreTrainedModel, count: int) -> Tensor:
    """Token ids ``[count]`` of the model's vocabulary, where it takes them."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    return (torch.arange(count, device=runs_on(model)) * 7 + 1) % vocabulary


def error_of(a: Tensor, b: Tensor) -> float:
    """Largest difference over the largest entry."""
    return float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-30))


def tolerance(dtype: torch.dtype) -> float:
    """The largest ``error_of`` of outputs that are equal but for rounding."""
    # A wrong rotation is off by the size of the entries; a right one by a few roundings.
    return 1e-4 if dtype in (torch.float32, torch.float64) else 8 * torch.finfo(dtype).eps
