"""Parts of one softmax, computed apart."""

from __future__ import annotations

import torch
from torch import Tensor


def merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Merge another part ``[..., Dv]`` with its log-sum-exp ``[...]`` into ``out`` and ``lse``, in place."""
    total = torch.logaddexp(lse, other_lse)
    mine, theirs = (lse - total).exp_()[..., None], (other_lse - total).exp_()[..., None]
    # In the log-sum-exp's dtype, so that reduced dtypes round once.
    out.copy_((out * mine).addcmul_(other.to(theirs.dtype), theirs))
    lse.copy_(total)


def with_sinks(out: Tensor, lse: Tensor, sinks: Tensor | None) -> Tensor:
    """``out`` with the heads' sink logits ``[H]`` in the softmax's denominator, where they carry no value."""
    if sinks is None:
        return out
    return out * torch.sigmoid(lse - sinks.to(lse)[None, :, None])[..., None].to(out.dtype)
