"""Top-k in C: the score of the last place is found, and nothing is sorted."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.kernels import cpu
from longspan.kernels.cpu import packing
from longspan.kernels.cpu.structs import ALL

_TOPK = ALL["TopK"]


def unsupported_reason(scores: Tensor) -> str | None:
    """Why this kernel cannot run on these scores (any shape), or None."""
    if scores.device.type != "cpu":
        return f"the scores are on {scores.device.type}"
    return f"no {scores.dtype}" if scores.dtype != torch.float32 else cpu.unavailable_reason()


def topk(scores: Tensor, count: int, tie: float, last: bool, start: int, stops: Tensor | None, near: int) -> Tensor:
    """``[..., T, count]`` int64 of fp32 scores ``[..., T, n]``."""
    rows, n = scores.shape[:-1], scores.shape[-1]
    scores = scores.contiguous()
    chosen = torch.empty(*rows, count, dtype=torch.int64, device="cpu")
    if chosen.numel() == 0:
        return chosen
    ends = stops.contiguous() if stops is not None else None
    tokens = rows[-1] if rows else 1
    packing.expect("scores", scores, *scores.shape, dtype=torch.float32, contiguous=True)
    if ends is not None:
        packing.expect("stops", ends, tokens, dtype=torch.int64, contiguous=True)
    packed = _TOPK.pack(
        scores=scores.data_ptr(),
        stops=0 if ends is None else ends.data_ptr(),
        to=chosen.data_ptr(),
        n=n,
        count=count,
        first=start,
        tokens=tokens,
        prefer_last=last,
        near=near,
        tie=tie,
    )
    cpu.run("topk", rows.numel(), packed, scores.numel())
    return chosen
