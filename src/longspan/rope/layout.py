"""The order of channels in memory: pairs that rotate together, in halves or side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from longspan.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor


Layout = Literal["half", "interleaved"]  # channel k with k + r / 2, or 2k with 2k + 1
# Writes x ``[B, H, T, D]`` to another tensor, channels ``start : start + 2 · half`` rotated by cos and sin, if given,
# and from one layout to another; false if it cannot.
Kernel = Callable[["Tensor", "tuple[Tensor, Tensor] | None", "Tensor", int, int, tuple[Layout, Layout]], bool]
KERNELS: dict[str, Kernel] = {}  # by the type of device; ``longspan.kernels`` puts its own here
_FEW = 4  # tokens whose channels are permuted by one operation, the slowest for many


@lru_cache(maxsize=16)
def interleaved_order(size: int, start: int, end: int) -> Tensor:
    """``[D]`` int64, ``D = size``: a head's channels, with those of ``start : end`` that rotate together adjacent."""
    with torch.inference_mode(False):  # kept for later calls, which may be outside of it
        order = torch.arange(size)
        order[start:end] = order[start:end].unflatten(0, (2, -1)).T.flatten()
    return order


def interleave(x: Tensor, start: int, end: int) -> Tensor:
    """``x`` ``[..., D]`` with its channels in ``interleaved_order``."""
    few = x.dim() == 4 and x.shape[2] <= _FEW and x.device.type == "cpu"
    if few or (torch.is_grad_enabled() and x.requires_grad):
        return x.index_select(-1, interleaved_order(x.shape[-1], start, end).to(x.device))
    out = empty_tokens_first(x)
    kernel = KERNELS.get(x.device.type)
    if kernel is not None and kernel(x, None, out, start, (end - start) // 2, ("half", "interleaved")):
        return out
    if end - start < x.shape[-1]:
        out[..., :start], out[..., end:] = x[..., :start], x[..., end:]
    halves, to = x[..., start:end].unflatten(-1, (2, -1)), out[..., start:end]
    if x.dtype in (torch.float32, torch.float64) and viewable_as_complex(to):
        torch.complex(*halves.unbind(-2), out=as_complex(to))  # twice as fast as a copy
    else:
        to.unflatten(-1, (-1, 2)).copy_(halves.transpose(-1, -2))
    return out


def empty_tokens_first(x: Tensor) -> Tensor:
    """Memory for a tensor like ``x``; for ``[B, H, T, D]`` tokens come before heads: heads that share lie together."""
    if x.dim() != 4:
        return torch.empty_like(x)
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)


def viewable_as_complex(x: Tensor) -> bool:
    """Whether neighbouring channels of ``x``, of any shape ``[..., r]``, can be viewed as complex numbers in place."""
    return x.stride(-1) == 1 and x.storage_offset() % 2 == 0 and all(step % 2 == 0 for step in x.stride()[:-1])


def as_complex(x: Tensor) -> Tensor:
    """``[..., r]`` as complex ``[..., r / 2]``, in the same memory."""
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))
