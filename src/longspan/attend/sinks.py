"""Attention-sink logits: softmax entries without a value."""

from __future__ import annotations

import torch
from torch import Tensor


def with_sinks(out: Tensor, lse: Tensor, sinks: Tensor | None) -> Tensor:
    """``out`` with the heads' sink logits ``[H]`` in the softmax's denominator alone: they have no value."""
    if sinks is None:
        return out
    return out * torch.sigmoid(lse - sinks.to(lse)[None, :, None])[..., None].to(out.dtype)
