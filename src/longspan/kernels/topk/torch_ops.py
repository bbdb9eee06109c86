"""Top-k in torch's own operations."""

from __future__ import annotations

import torch
from torch import Tensor


def topk(scores: Tensor, count: int, tie: float, last: bool, start: int, stops: Tensor | None, near: int) -> Tensor:
    """``[..., T, count]`` int64 of scores ``[..., T, n]``."""
    # The row's places are a range, of which a copy is cheaper than masks, if a look at it waits for nothing.
    if stops is not None and len(stops) == 1 and stops.device.type == "cpu":
        return topk(scores[..., start : int(stops)], count, tie, last, 0, None, near) + start
    if not start and stops is None:
        scores = max_nearby(scores, near)
        return _topk(scores, count, _tie(scores, tie) if tie else 0.0, last)
    place = torch.arange(scores.shape[-1], device=scores.device)
    outside = place < start if stops is None else (place < start) | (place >= stops.to(scores.device)[:, None])
    scores, slack = _masked(scores, outside, tie, near)
    return _topk(scores, count, slack, last)


def masked_topk(scores: Tensor, count: int, tie: float, last: bool, start: int, stops: Tensor, near: int) -> Tensor:
    """``[..., T, count]`` int64 by operations that do not depend on ``stops``, a tensor on the scores' device."""
    place = torch.arange(scores.shape[-1], device=scores.device)
    outside = (place < start) | (place >= stops[:, None])
    scores, slack = _masked(scores, outside, tie, near)
    ranks = _ranks(scores, scores.topk(count, dim=-1).values[..., -1:], slack, last)
    # Behind the stop there may be no such places, and scores that are NaN or -inf would tie with those there.
    return ranks.masked_fill_(outside, -1).topk(count, dim=-1).indices.sort(dim=-1).values


def _masked(scores: Tensor, outside: Tensor, tie: float, near: int) -> tuple[Tensor, Tensor | float]:
    """Scores of which those ``outside`` do not count, and how near to the last place ties are."""
    scores = max_nearby(scores.masked_fill(outside, float("-inf")), near)
    slack = _tie(scores.masked_fill(outside, 0), tie) if tie else 0.0
    return scores.masked_fill(outside, float("-inf")) if near else scores, slack


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
    return _ranks(scores, least, slack, last).topk(count, dim=-1).indices.sort(dim=-1).values


def _ranks(scores: Tensor, least: Tensor, slack: Tensor | float, last: bool) -> Tensor:
    """Numbers of the scores' shape, of which the largest are the choice; ``least`` is the score of the last place."""
    n, near = scores.shape[-1], scores >= least - slack
    place = torch.arange(n, device=scores.device, dtype=torch.int32)
    return (near.int() + (scores > least + slack).int()) * n + (place if last else n - 1 - place)
