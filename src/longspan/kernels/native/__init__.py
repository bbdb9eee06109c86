"""Kernels in C for a CPU: the library that they are compiled to, and what calls of it have in common.

The folders of kernels have a ``compiled.py`` each that calls it. Calls give the interpreter's lock back while they run.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.native.build import BuildError, compiler, library_for, version

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # as in vectors.h
LANES = 8  # head sizes are multiples of it

SWITCH = "LONGSPAN_COMPILED"  # set to 0, an environment variable that leaves the library out
FEW = 2  # rows up to which each reads its keys by itself
_SHARE = 2**21  # numbers that take as long to read as it takes to wake a thread
_TILE = 192  # rows that see keys together, as in tile.h

_COUNT, _AT = ctypes.c_int64, ctypes.c_void_p
_ARGUMENTS = {
    "longspan_banded": [_AT] * 5 + [_COUNT] * 3,
    "longspan_units": [_AT] * 7 + [_COUNT] * 4,
    "longspan_tokens": [_AT] * 7 + [_COUNT] * 3,
    "longspan_representations": [_AT] * 5 + [_COUNT] * 3 + [_AT],
    "longspan_products": [_AT, _COUNT, _AT, _COUNT, _COUNT, _AT, *[_COUNT] * 6],
    "longspan_best": [_AT, *[_COUNT] * 3, _AT, _COUNT, ctypes.c_float, _COUNT, _COUNT, _AT, *[_COUNT] * 2],
    "longspan_worth": [_AT, _COUNT, _AT],
    "longspan_turn": [_AT, _COUNT, _COUNT, _AT, _COUNT, _COUNT, _AT, _AT, *[_COUNT] * 8],
    "longspan_banded_many": [_AT] * 5 + [_COUNT] * 3 + [_AT],
    "longspan_units_many": [_AT] * 7 + [_COUNT] * 5 + [_AT],
    "longspan_tokens_many": [_AT] * 7 + [_COUNT] * 3 + [_AT],
}


_switched_off: ContextVar[bool] = ContextVar("switched_off", default=False)


@contextmanager
def without() -> Iterator[None]:
    """What runs inside runs on torch's operations."""
    token = _switched_off.set(True)
    try:
        yield
    finally:
        _switched_off.reset(token)


@lru_cache(maxsize=1)
def _loaded() -> ctypes.CDLL | str:
    """The library, or why there is none; looked for once a process."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 is set"
    try:
        with library_for(compiler()) as path:
            found = ctypes.CDLL(str(path))
        for name, arguments in _ARGUMENTS.items():
            getattr(found, name).argtypes = arguments
            getattr(found, name).restype = ctypes.c_int
    except Exception as error:  # whatever is wrong with a compiler or a folder, torch's operations are as right
        return str(error) or type(error).__name__
    return found


def why_no_library() -> str | None:
    """Why there is no compiled library here, or None. The first call may take some seconds to compile it."""
    if _switched_off.get():
        return "another implementation was named"
    found = _loaded()
    return found if isinstance(found, str) else None


@lru_cache(maxsize=1)
def made_by() -> str:
    """The compiler of the library, for reports."""
    try:
        return version(compiler())
    except BuildError:  # it was there when the library was made
        return "a compiler that is no longer there"


def why_not(q: Tensor, *others: Any) -> str | None:
    """Why compiled kernels cannot run on these tensors, or None."""
    dtype, gradients = q.dtype, torch.is_grad_enabled()
    if not q.is_cpu:
        return f"the tensors are on {q.device.type}"
    if dtype not in KINDS:
        return f"no {dtype}"
    for x in (q, *others):
        if not isinstance(x, Tensor):
            return "keys and values are kept off the device"
        if x.dtype != dtype or not x.is_cpu:
            return f"the queries are {dtype} on cpu and keys or values {x.dtype} on {x.device.type}"
        if x.shape[-1] % LANES:
            return f"a head size of {x.shape[-1]} is no multiple of {LANES}"
        if gradients and x.requires_grad:
            return "it gives no gradients"
    return why_no_library()


def tile_tokens(group: int) -> int:
    """How many tokens of a group's heads see keys together."""
    return max(1, _TILE // group)


def run(name: str, items: int, numbers: int, *arguments: Any) -> None:
    """Call a function on all its items, spread over torch's threads where there is enough to do for several.

    Args:
        numbers: about how many stored numbers it reads.

    Raises:
        MemoryError: there was not enough.
    """
    if items == 0:
        return
    call = _function(name)
    shares = min(torch.get_num_threads(), items, max(1, numbers // _SHARE))
    edges = [items * n // shares for n in range(shares + 1)]
    everywhere(name, [partial(call, *arguments, a, z) for a, z in zip(edges[:-1], edges[1:], strict=True)])


def run_many(name: str, items: int, *arguments: Any) -> None:
    """The same for a function that takes item after item until there is none: those that are not equally long.

    Raises:
        MemoryError: there was not enough.
    """
    if items == 0:
        return
    taken = ctypes.c_int64(0)
    one = partial(_function(name), *arguments, items, ctypes.byref(taken))
    everywhere(name, [one] * min(torch.get_num_threads(), items))


def _function(name: str) -> Callable[..., int]:
    library = _loaded()
    assert not isinstance(library, str)
    found: Callable[..., int] = getattr(library, name)
    return found


def everywhere(name: str, calls: Sequence[Callable[[], int]]) -> None:
    """Run all calls of a function side by side, the first of them here."""
    if len(calls) == 1:
        if not calls[0]():
            raise MemoryError(f"no memory for {name}")
        return
    others: list[Future[int]] = []
    try:
        for call in calls[1:]:
            others.append(_workers(os.getpid()).submit(call))
        done = calls[0]()
    finally:
        _finish(others)
    if not all([done, *(other.result() for other in others)]):
        raise MemoryError(f"no memory for {name}")


def _finish(others: Sequence[Future[int]]) -> None:
    """Wait, whatever interrupts: they read and write memory that whoever called lets go of."""
    interrupted: KeyboardInterrupt | None = None
    while not all(other.done() for other in others):
        try:
            wait(others)
        except KeyboardInterrupt as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted


@lru_cache(maxsize=1)
def _workers(process: int) -> ThreadPoolExecutor:
    """Threads of this process: those of another do not come along when it is copied."""
    return ThreadPoolExecutor(max_workers=max(os.cpu_count() or 1, 2), thread_name_prefix="longspan")
