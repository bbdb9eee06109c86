"""The best of many scores, with ties decided by place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["best", "best_nearby"]


def best(
    scores: Tensor,
    count: int,
    *,
    tie: float = 0.0,
    last: bool = False,
    start: int = 0,
    stops: Tensor | None = None,
    near: int = 0,
) -> Tensor:
    """The ``count`` best of scores ``[..., T, n]`` as ascending indices ``[..., T, count]`` int64.

    A call on a GPU does not wait for it.

    Args:
        tie: scores within so much of the last place, in parts of the row's largest score, tie for it, and the first of
            them win, or the ``last`` ones.
        start, stops: only places ``start ≤ j < stops[t]`` count, ``[T]`` int64 on the CPU, of which every row has
            ``count``; all of them where ``stops`` is None.
        near: a score counts as the best within so many places of it, of those that count.
    """
    from longspan.kernels.best import compiled, torch_ops  # here, so that selections can be described without torch

    runs = compiled if compiled.why_not(scores) is None else torch_ops
    return runs.best(scores, count, tie, last, start, stops, near)


def best_nearby(scores: Tensor, near: int) -> Tensor:
    """Each score ``[..., n]`` becomes the best within ``near`` places of it."""
    from longspan.kernels.best import torch_ops

    return torch_ops.best_nearby(scores, near)
