"""Kernels in C for a CPU: the library that they are compiled to, and what calls of it have in common.

The folders of kernels have a ``compiled.py`` each that calls it. Calls give the interpreter's lock back while they run.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.native import structs
from longspan.kernels.native.build import BuildError, compiler, library_for, version

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # as in vectors.h
LANES = 8  # head sizes are multiples of it

SWITCH = "LONGSPAN_COMPILED"  # set to 0, an environment variable that leaves the library out
FEW = 2  # rows up to which each reads its keys by itself
_SHARE = 2**18  # numbers that take as long to read as it takes to wake a thread
_TILE = 192  # rows that see keys together, as in tile.h

_KERNELS = ["banded", "units", "tokens", "banded_many", "units_many", "tokens_many"]
_KERNELS += ["representations", "products", "worth", "best", "turn"]
_KERNELS += ["pieces", "token_taken_in", "token_reduced", "token_scored", "token_chosen", "token_seen"]
# What looks at the indices and positions of those that have some, before they run; see checks.c.
_CHECKS = {name: name for name in ("banded", "units", "tokens", "representations", "best", "pieces")}
_CHECKS |= {"banded_many": "banded", "units_many": "units", "tokens_many": "tokens", "token_taken_in": "token"}
_ADDRESS, _COUNT = ctypes.c_void_p, ctypes.c_int64
_STEP = struct.Struct("=Qq")  # a kernel and its items, as in team.c
_PROCESS = os.getpid()


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
        found.longspan_team.argtypes = [ctypes.c_char_p, _COUNT, _ADDRESS, ctypes.c_char_p, _COUNT, _ADDRESS]
        found.longspan_team.restype = ctypes.c_char_p
        for name in (*_KERNELS, *(f"check_{name}" for name in _CHECKS.values())):
            getattr(found, f"longspan_{name}")
        if (difference := structs.differs(found)) is not None:
            return difference
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


def group_of(heads: int, sharing: int) -> int:
    """``heads / sharing``; raises ``ValueError`` if they are not shared out evenly."""
    if heads < 1 or sharing < 1 or heads % sharing:
        raise ValueError(f"{heads} heads are not shared out evenly to {sharing}")
    return heads // sharing


def tile_tokens(heads: int, sharing: int) -> int:
    """How many tokens of a group's heads see keys together."""
    return max(1, _TILE // group_of(heads, sharing))


def run(name: str, items: int, given: bytes, numbers: int | None = None) -> None:
    """Run a kernel on all its items, on torch's threads where there is enough to do for several.

    Args:
        given: the structure that it takes, packed. The caller keeps what that holds the addresses of.
        numbers: about how many stored numbers it reads; None for what is always enough.

    Raises:
        ValueError: an index or a position leads outside of its tensor; nothing was done.
        MemoryError: there was not enough.
    """
    if items:
        run_all([(name, items)], given, numbers)


def run_all(steps: Sequence[tuple[str, int]], given: bytes, numbers: int | None = None) -> None:
    """The same for kernels that run one after the other, each on items of its own and all given the same."""
    one = len(steps) == 1 and steps[0][1] == 1
    alone = one or numbers is not None and numbers < 2 * _SHARE
    # Never on some of torch's threads: OpenMP ends the others, and starts them again the next time.
    together(steps, given, 1 if alone else torch.get_num_threads())


def together(steps: Sequence[tuple[str, int]], given: bytes, threads: int) -> None:
    """The same on so many threads."""
    library = _loaded()
    assert not isinstance(library, str)
    # A copy of this process has none of its threads.
    openmp = _openmp() if threads > 1 and os.getpid() == _PROCESS else None
    packed = b"".join(_STEP.pack(_address(name), items) for name, items in steps)
    check = _CHECKS.get(steps[0][0])
    looked_at = None if check is None else _address(f"check_{check}")
    wrong = library.longspan_team(packed, len(steps), looked_at, given, threads, openmp)
    if wrong:
        raise ValueError(f"the kernel {steps[0][0]} cannot run: {wrong.decode()}")
    if wrong is not None:
        raise MemoryError(f"no memory for {steps[-1][0]}")


@cache
def _address(name: str) -> int | None:
    return ctypes.cast(getattr(_loaded(), f"longspan_{name}"), _ADDRESS).value


@lru_cache(maxsize=1)
def _openmp() -> int | None:
    """Where ``GOMP_parallel`` is, of the OpenMP that torch brought; None where that has no such entry."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, _ADDRESS).value
    except (AttributeError, OSError, TypeError):  # TypeError: on Windows None names no library
        return None
