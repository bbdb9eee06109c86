"""Scores before a softmax, and parts of one softmax that are computed apart, in torch's operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.dtypes import accumulator

_BLOCK = 256  # tokens merged at once on a CPU
# fp16 ends at 65,504, which q·k of some models exceeds before it is scaled. A power of two rounds nothing.
_SMALLER = 2.0**-6


def products(q: Tensor, k: Tensor) -> Tensor:
    """``q·k`` ``[..., T, M]`` in the accumulator, of ``[..., T, D]`` and ``[..., M, D]`` of one dtype."""
    if q.dtype == torch.float16:
        return ((q * _SMALLER) @ k.mT).to(accumulator(q)) / _SMALLER
    return (q @ k.mT).to(accumulator(q))


def bounded(products: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Scores of products ``q·k`` of any shape."""
    scores = products * scale
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def merged(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Parts ``[..., Dv]`` with their log-sum-exps ``[...]`` as a whole, of several in the log-sum-exps' dtype."""
    if len(outs) == 1:
        return outs[0], lses[0]
    lse = torch.stack(tuple(lses)).logsumexp(dim=0)
    first, *weights = ((part_lse - lse).exp_()[..., None] for part_lse in lses)
    # Summed in the log-sum-exp's dtype, so that reduced dtypes do not round at every part.
    out = outs[0] * first
    for part, weight in zip(outs[1:], weights, strict=True):
        out.addcmul_(part.to(weight.dtype), weight)
    return out, lse


def merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Merge another part ``[B, H, T, Dv]`` with its log-sum-exp ``[B, H, T]`` into ``out`` and ``lse``, in place."""
    # Block by block on a CPU: what is computed on the way stays in its cache, and no new memory is touched.
    step = _BLOCK if out.device.type == "cpu" else max(out.shape[2], 1)
    for first in range(0, out.shape[2], step):
        rows = slice(first, first + step)
        mine, own_lse, theirs, their_lse = (x[:, :, rows] for x in (out, lse, other, other_lse))
        total = torch.logaddexp(own_lse, their_lse)
        ours, weights = (own_lse - total).exp_()[..., None], (their_lse - total).exp_()[..., None]
        # In the log-sum-exp's dtype, so that reduced dtypes round once.
        mine.copy_((mine * ours).addcmul_(theirs.to(weights.dtype), weights))
        own_lse.copy_(total)
