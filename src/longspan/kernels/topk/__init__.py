"""The places of the largest of many scores, in order; ties are decided by place.

Contract. Of a row's scores those at ``start ≤ j < stop`` count; each counts as the largest within ``near`` places. With
``t`` the ``count``-th largest of these and ``slack`` as ``tie`` times the largest absolute one, all above ``t + slack``
are taken, and of those in ``[t - slack, t + slack]`` the first ones or the last ones. NaN is larger than any number.
"""

from __future__ import annotations

from torch import Tensor

from longspan.kernels import backends
from longspan.kernels.dispatch import Impl, Implementation, Kernel
from longspan.kernels.topk import compiled, reference, torch_ops, triton
from longspan.kernels.topk.torch_ops import max_nearby

__all__ = ["masked_topk", "max_nearby", "topk"]

TOPK = Kernel(
    Implementation(backends.TRITON, triton.topk, triton.unsupported_reason, triton.slower),
    Implementation(backends.COMPILED, compiled.topk, compiled.unsupported_reason),
    Implementation(backends.TORCH, torch_ops.topk),
    Implementation(backends.REFERENCE, reference.topk),
)


def topk(
    scores: Tensor,
    count: int,
    *,
    tie: float = 0.0,
    last: bool = False,
    start: int = 0,
    stops: Tensor | None = None,
    near: int = 0,
    impl: Impl = "auto",
) -> Tensor:
    """The ``count`` largest of scores ``[..., T, n]`` as ascending indices ``[..., T, count]`` int64.

    A call on a GPU does not wait for it.

    Args:
        tie: scores that differ from that of the last place by no more than this part of the row's largest tie for it,
            and the first of them win, or the ``last`` ones.
        start, stops: only places ``start ≤ j < stops[t]`` count, ``[T]`` int64 on the CPU or on the scores' device,
            of which every row has ``count``; all of them if ``stops`` is None.
        near: a score counts as the largest within so many places of it, of those that count.
        impl: see ``longspan.kernels.dispatch``.

    Raises:
        ValueError: the named implementation cannot run here.
    """
    chosen: Tensor = TOPK.choose(impl, scores.device, scores).run(scores, count, tie, last, start, stops, near)
    return chosen


def masked_topk(
    scores: Tensor, count: int, *, tie: float = 0.0, last: bool = False, start: int = 0, stops: Tensor, near: int = 0
) -> Tensor:
    """``topk`` of scores ``[..., T, n]`` by operations that a CUDA graph can record: ``[..., T, count]`` int64.

    ``stops`` int64 is on the scores' device, ``[T]`` or ``[1]`` for all rows. No operation depends on what is in them
    or in the scores.
    """
    if triton.unsupported_reason(scores) is None and not triton.slower(scores):
        return triton.launch(scores, count, tie, last, start, scores.shape[-1], stops, near)
    return torch_ops.masked_topk(scores, count, tie, last, start, stops, near)
