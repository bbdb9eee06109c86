"""The backends of longspan, those that ``impl="auto"`` prefers first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longspan.kernels import cpu
from longspan.kernels.dispatch import Backend, register
from longspan.kernels.gpu import tiles

_FLASH_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def flash_unsupported_reason(q: Tensor, *_: Any, softcap: float | None = None) -> str | None:
    """Why torch's flash attention for CPU cannot run on queries ``q`` of any shape, or None."""
    if q.device.type != "cpu":
        return f"the tensors are on {q.device.type}"
    if q.dtype not in _FLASH_DTYPES:
        return f"no {q.dtype}"
    return "torch's flash attention has no softcap" if softcap is not None else None


TRITON = register(
    Backend(
        "triton",
        "cuda",
        tiles.unsupported_reason,
        title="Triton kernels",
        many_chunks=True,
    )
)
COMPILED = register(
    Backend(
        "compiled",
        "cpu",
        cpu.unsupported_reason,
        title="C kernels",
        details=cpu.origin,
        in_c=True,
        many_chunks=True,
    )
)
FLASH_CPU = register(Backend("flash_cpu", "cpu", flash_unsupported_reason))
TORCH = register(Backend("torch", "any"))
REFERENCE = register(Backend("reference", None))
