"""The contract of ``topk``, a row at a time in Python."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def topk(scores: Tensor, count: int, tie: float, last: bool, start: int, stops: Tensor | None, near: int) -> Tensor:
    """``[..., T, count]`` int64 of scores ``[..., T, n]``."""
    n, tokens = scores.shape[-1], scores.shape[-2] if scores.dim() > 1 else 1
    ends = [n] * tokens if stops is None else [min(int(stop), n) for stop in stops]
    rows = scores.reshape(-1, n).tolist()
    chosen = [_row(row[start : ends[t % tokens]], count, tie, last, near, scores.dtype) for t, row in enumerate(rows)]
    return (torch.tensor(chosen, dtype=torch.int64).view(*scores.shape[:-1], count) + start).to(scores.device)


def _row(scores: list[float], count: int, tie: float, last: bool, near: int, dtype: torch.dtype) -> list[int]:
    if any(map(math.isnan, scores)):  # they are taken first, and the first numbers fill up the rest
        nan = [j for j, x in enumerate(scores) if math.isnan(x)]
        return sorted((nan + [j for j, x in enumerate(scores) if not math.isnan(x)])[:count])
    nearby = [max(scores[max(j - near, 0) : j + near + 1]) for j in range(len(scores))]
    if count == 0:
        return []
    least = sorted(nearby, reverse=True)[count - 1]
    # In the scores' dtype, as every implementation computes it.
    slack = torch.tensor(tie, dtype=dtype) * max(map(abs, nearby)) if tie else torch.zeros((), dtype=dtype)
    low, high = float(least - slack), float(least + slack)
    above = [j for j, x in enumerate(nearby) if x > high]
    tied = [j for j, x in enumerate(nearby) if low <= x <= high]
    missing = count - len(above)
    return sorted(above + (tied[len(tied) - missing :] if last else tied[:missing]))
