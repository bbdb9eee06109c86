"""What a forward asks of a GPU that is not there: copies to it, waits for it, operations and kernels.

Tensors of the device ``meta`` stand for its memory, and nothing in place of the Triton kernels for its work.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from longspan.kernels import backends, dispatch
from longspan.kernels.banded import triton_jit as banded
from longspan.kernels.gathered import triton_jit as gathered
from longspan.kernels.gathered import triton_jit_chunk as gathered_chunk
from longspan.kernels.gpu import primitives, rotate, rotate_jit, tiles
from longspan.kernels.scores import triton_jit as scores
from longspan.kernels.topk import triton_jit as topk
from longspan.rope.layout import KERNELS as KERNELS_OF_ROTATIONS
from support.tape import WAITS

META = torch.device("meta")
KERNELS = banded, gathered, gathered_chunk, primitives, rotate_jit, scores, topk


class Host(TorchDispatchMode):
    """Attributes: where ``longspan`` made ``copies`` to the device and ``waits`` for it; its ``kernels`` by name."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[str] = []
        self.waits: list[str] = []
        self.kernels: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        there = any(x.device == META for x in given)
        if there and name in (*WAITS, "to", "_to_copy") and torch.device(kwargs.get("device") or META) != META:
            self.waits.append(_place())
            return torch.zeros(given[0].shape, dtype=kwargs.get("dtype") or given[0].dtype)
        if there and name in WAITS:
            self.waits.append(_place())
            return 1
        out = func(*args, **kwargs)
        made = [x for x in tree_flatten(out)[0] if isinstance(x, Tensor)]
        # A tensor without dimensions goes with the launch, as a number.
        brought = [x for x in given if x.device != META and (x.dim() or "to" in name)]
        if brought and (there or any(x.device == META for x in made)):
            self.copies.append(_place())
        return out


class _Kernel:
    def __init__(self, name: str, host: Host) -> None:
        self.name, self.host = name, host

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self.host.kernels.append(self.name)


@contextmanager
def watched(monkeypatch: Any, *more: ModuleType) -> Iterator[Host]:
    """Counts what runs on tensors of ``META``, for which the Triton kernels are chosen."""
    host = Host()
    with monkeypatch.context() as patch:
        own = replace(backends.TRITON, device="meta", unsupported=lambda *tensors: None)
        patch.setitem(dispatch.BACKENDS, own.name, own)
        patch.setattr(tiles, "unsupported_reason", lambda *tensors: None)
        patch.setitem(KERNELS_OF_ROTATIONS, "meta", rotate.taken)
        patch.setattr(rotate, "runs", lambda *tensors: True)
        patch.setattr(tiles, "processors", lambda device: 132)
        for module in (*KERNELS, *more):
            for name, found in list(vars(module).items()):
                if type(found).__name__ in ("JITFunction", "InterpretedFunction"):
                    patch.setattr(module, name, _Kernel(name, host))
        with host, torch.inference_mode():
            yield host


def _place() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None and "/longspan/" not in frame.f_code.co_filename:
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/longspan/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"


def tensors(tokens: int, heads: int, kv_heads: int, width: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    """q, k, v on ``META``."""
    return [torch.empty(1, h, tokens, width, dtype=dtype, device=META) for h in (heads, kv_heads, kv_heads)]
