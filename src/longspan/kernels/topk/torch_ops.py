"""Top-k in torch's own operations."""

from __future__ import annotations

import torch
from torch import Tensor


def topk(scores: Tensor, count: int, tie: float, last: bool, start: int, stops: Tensor | None, near: int) -> Tensor:
    """``[..., T, count]`` int64 of scores ``[..., T, n]``."""
    if stops is not None and len(stops) == 1:  # the row's places are a range, of which a copy is cheaper than masks
        return topk(scores[..., start : int(stops)], count, tie, last, 0, None, near) + start
    slack: Tensor | float = 0.0
    if start or stops is not None:
        place = torch.arange(scores.shape[-1])
        outside = place < start if stops is None else (place < start) | (place >= stops[:, None])
        outside = outside.to(scores.device)
        scores = max_nearby(scores.masked_fill(outside, float("-inf")), near)
        slack = _tie(scores.masked_fill(outside, 0), tie) if tie else slack
        scores = scores.masked_fill(outside, float("-inf")) if near else scores
    else:
        scores = max_nearby(scores, near)
        slack = _tie(scores, tie) if tie else slack
    return _topk(scores, count, slack, last)


def max_nearby(scores: Tensor, near: int) -> Tensor:
    """Scores of the same shape, ``[..., n]``: each is the largest within ``near`` places of it."""
    if not near or not scores.shape[-1]:
        return scores
    if near > 2 or scores.device.type != "cpu":
        rows = scores.reshape(1, -1, scores.shape[-1])
        return torch.nn.functional.max_pool1d(rows, 2 * near + 1, stride=1, padding=near).view(scores.shape)
    largest = scores.clone()  # a few passes are several times faster on a CPU
    for n in range(1, min(near, scores.shape[-1] - 1) + 1):
        torch.maximum(largest[..., n:], scores[..., :-n], out=largest[..., n:])
        torch.maximum(largest[..., :-n], scores[..., n:], out=largest[..., :-n])
    return largest


def _tie(scores: Tensor, tie: float) -> Tensor:
    return scores.abs().amax(dim=-1, keepdim=True).mul_(tie)


def _topk(scores: Tensor, count: int, slack: Tensor | float, last: bool) -> Tensor:
    best = scores.topk(count, dim=-1)
    least = best.values[..., -1:]
    near = scores >= least - slack
    # To look whether there is a tie is cheap on a CPU; elsewhere it would be to wait.
    if scores.device.type == "cpu" and not bool((near.sum(dim=-1) > count).any()):
        return best.indices.sort(dim=-1).values
    n = scores.shape[-1]
    place = torch.arange(n, device=scores.device, dtype=torch.int32)
    rank = (near.int() + (scores > least + slack).int()) * n + (place if last else n - 1 - place)
    return rank.topk(count, dim=-1).indices.sort(dim=-1).values
