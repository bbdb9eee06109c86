"""Whether Triton kernels can run, and how large their tiles may be."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from longspan.install import pip_install

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_CAPABILITY = (8, 0)  # the first with bf16 matrix products
_INTERPRETED = 4  # processors that a run under the interpreter pretends to have
SMALLEST = 16  # the least that a side of a matrix product may be


@dataclass(frozen=True, slots=True)
class Tiles:
    """Sizes of a program: query rows, keys a step, warps, and steps of loads in flight."""

    rows: int
    keys: int
    warps: int
    stages: int


def interpreting() -> bool:
    """Whether Triton runs its kernels in Python, on CPU tensors (``TRITON_INTERPRET=1``, read when it is imported)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def offloaded(x: Any) -> bool:
    """Whether ``x`` stands for a tensor that is offloaded, whose ranges are copied to the device."""
    return not isinstance(x, Tensor)


def unsupported_reason(q: Tensor, *others: Any) -> str | None:
    """Why Triton kernels cannot run on these tensors (any shape), or None; ``offloaded`` ones are copied first."""
    if q.dtype not in _DTYPES:
        return f"no {q.dtype}"
    tensors = [x for x in others if not offloaded(x)]
    for x in tensors:
        if x.device != q.device:
            return f"the queries are on {q.device} and keys or values on {x.device}"
        if x.dtype != q.dtype:
            return f"the queries are {q.dtype} and keys or values {x.dtype}"
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, *tensors)):
        return "it does not support gradients"
    if find_spec("triton") is None:
        return f"Triton is not installed ({pip_install('gpu')})"
    if interpreting():
        return None if q.device.type == "cpu" else "TRITON_INTERPRET=1 is for tensors on a CPU"
    if q.device.type != "cuda":
        return f"the tensors are on {q.device.type}, and TRITON_INTERPRET=1 is not set"
    if torch.version.cuda is None:
        return "it needs CUDA, and this torch is built without it"
    if ((has := _properties(q.device)).major, has.minor) < _CAPABILITY:
        return f"the GPU has compute capability {has.major}.{has.minor}, and it needs {'.'.join(map(str, _CAPABILITY))}"
    return None


def power(n: int, least: int = SMALLEST) -> int:
    """The smallest power of two that is at least ``n`` and ``least``."""
    return max(least, 1 << max(n - 1, 0).bit_length())


def choose(q: Tensor, dk: int, dv: int, rows: int) -> Tiles:
    """Tiles for ``rows`` query rows per key head, head sizes padded to ``dk`` and ``dv``, on the device of ``q``.

    Of ``q``, of any shape, only dtype and device count.
    """
    if interpreting():
        return Tiles(min(power(rows), 32), 16, 1, 1)
    return fitting(q.element_size(), dk, dv, rows, _memory(q.device))


def fitting(bytes_each: int, dk: int, dv: int, rows: int, memory: int) -> Tiles:
    """The largest tiles that fit ``memory`` bytes of shared memory and the registers."""
    wide = max(dk, dv)
    if bytes_each == 4:  # products of fp32 run without tensor cores, and their operands take registers
        tiles = Tiles(min(power(rows), 64 if wide <= 64 else 32), 32 if wide <= 128 else 16, 8, 2)
    else:
        tiles = Tiles(min(power(rows), 128), 128 if wide <= 64 else 64 if wide <= 128 else 32, 8, 3)
    if tiles.rows <= (16 if bytes_each == 4 else 64):
        tiles = replace(tiles, warps=4)
    while _needed(tiles, bytes_each, dk, dv) > memory:
        if tiles.stages > 2:
            tiles = replace(tiles, stages=tiles.stages - 1)
        elif tiles.keys > SMALLEST:
            tiles = replace(tiles, keys=tiles.keys // 2)
        elif tiles.rows > SMALLEST:
            tiles = replace(tiles, rows=tiles.rows // 2)
        else:
            break
    return tiles


def _needed(tiles: Tiles, bytes_each: int, dk: int, dv: int) -> int:
    """Bytes of shared memory: the queries, and keys and values of each stage."""
    return bytes_each * (tiles.rows * dk + tiles.stages * tiles.keys * (dk + dv))


def processors(device: torch.device) -> int:
    """How many programs run side by side, one a multiprocessor."""
    return _INTERPRETED if device.type != "cuda" else _properties(device).multi_processor_count


def splits(programs: int, blocks: int, device: torch.device) -> int:
    """Into how many parts the keys of each of ``programs`` programs are cut: enough to keep the device busy.

    ``blocks`` is how many steps a program has; a part has at least two.
    """
    busy = 2 * processors(device)
    return max(1, min(busy // max(programs, 1), blocks // 2, 128))


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current GPU, which need not be the one that a layer's tensors are on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _memory(device: torch.device) -> int:
    # Older torch does not say; 99 KB is what every GPU since compute capability 8.0 gives.
    return int(getattr(_properties(device), "shared_memory_per_block_optin", 99 * 1024))


@lru_cache(maxsize=16)
def _properties(device: torch.device) -> Any:
    return torch.cuda.get_device_properties(device)
