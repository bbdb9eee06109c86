"""Kernels in C for a CPU: the library that they are in, whether it is there, and calls of its kernels.

The ``compiled.py`` of each kernel's folder calls it. The sources are in ``src/``; ``structs.h`` there declares what is
handed over. A call releases the interpreter's lock while it runs.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.cpu.build import BuildError, compiler, library_for, version
from longspan.kernels.cpu.levels import Level, shipped

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # as in vectors.h
LANES = 8  # head sizes are multiples of it
# An environment variable: 0 disables the library, ``here`` has it compiled, a level's name takes that of the wheel.
SWITCH, HERE = "LONGSPAN_COMPILED", "here"
DECODE_ROWS = 2  # query rows up to which each reads its keys by itself
_TILE = 192  # query rows of a tile, as in tile.h

# Kernels whose indices and positions are checked before they run; see checks.c.
_CHECKS = {name: name for name in ("representations", "token_scores", "topk")}
_CHECKS |= {f"{name}_{rows}": name for name in ("banded", "units", "tokens") for rows in ("decode", "prefill")}
_CHECKS |= {"decode_append": "decode"}
_ADDRESS, _COUNT = ctypes.c_void_p, ctypes.c_int64
_STEP = struct.Struct("=Qq")  # the address of a kernel and its number of items, as in threads.c
_PROCESS = os.getpid()

Step = tuple[str, int]  # a kernel's name and its number of items


@dataclass(frozen=True)
class KernelSettings:
    """How kernels in C run in this context.

    Attributes:
        enabled: whether they run at all.
        numbers_per_thread: stored numbers below which a thread is not worth waking.
        openmp: whether torch's OpenMP threads are used, rather than threads of the call's own.
        around: for profiles and tests: called for every step with its name, the number of threads and a function that
            runs it; steps that normally run in one call then run one by one.
    """

    enabled: bool = True
    numbers_per_thread: int = 2**18  # they take about as long to read as a thread takes to wake
    openmp: bool = True
    around: Callable[[str, int, Callable[[], None]], None] | None = None


_settings: ContextVar[KernelSettings] = ContextVar("settings", default=KernelSettings())  # noqa: B039  (it is frozen)


@contextmanager
def settings(**changes: Any) -> Iterator[None]:
    """Change fields of ``KernelSettings`` for what runs inside."""
    token = _settings.set(replace(_settings.get(), **changes))
    try:
        yield
    finally:
        _settings.reset(token)


def disabled() -> AbstractContextManager[None]:
    """Let what runs inside run without the library."""
    return settings(enabled=False)


def _level() -> Level | None:
    """The library of the wheel that this process takes; None if it takes one that is compiled here."""
    asked = os.environ.get(SWITCH, "")
    return None if asked == HERE else shipped(None if asked in ("", "1") else asked)


@lru_cache(maxsize=1)
def _loaded() -> ctypes.CDLL | str:
    """The library, or why there is none; looked for once a process, and if there is none, that is said once."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 is set"
    try:
        level = _level()
        with library_for(compiler()) if level is None else nullcontext(level.file) as path:
            library = ctypes.CDLL(str(path))
        library.longspan_run.argtypes = [ctypes.c_char_p, _COUNT, _ADDRESS, ctypes.c_char_p, _COUNT, _ADDRESS]
        library.longspan_run.restype = ctypes.c_char_p
    except Exception as error:  # whatever is wrong with a compiler or a folder, torch's operations give the same
        reason = str(error) or type(error).__name__
        print(f"longspan: no C kernels, so a token takes several times as long: {reason}", file=sys.stderr)
        return reason
    return library


def unavailable_reason() -> str | None:
    """Why there is no compiled library here, or None. The first call may compile it, which takes some seconds."""
    if not _settings.get().enabled:
        return "another implementation is set"
    library = _loaded()
    return library if isinstance(library, str) else None


def forget() -> None:
    """Forget what was loaded, or why nothing was, so that the next call looks for the library again."""
    for cached in (_loaded, origin, _address, _packed_steps):
        cached.cache_clear()


@lru_cache(maxsize=1)
def origin() -> str:
    """Where the library is from, for reports: a level of the wheel, or the compiler that made it here."""
    if (level := _level()) is not None:
        return f"from the wheel, for {level.name}"
    try:
        return f"compiled here by {version(compiler())}"
    except BuildError:  # it was there when the library was compiled
        return "compiled here by a compiler that is no longer there"


def unsupported_reason(q: Tensor, *others: Any) -> str | None:
    """Why compiled kernels cannot run on these tensors, or None.

    Args:
        q: queries of any shape.
        others: keys and values; what is no tensor stands for one that is offloaded.
    """
    dtype, gradients = q.dtype, torch.is_grad_enabled()
    if not q.is_cpu:
        return f"the tensors are on {q.device.type}"
    if dtype not in KINDS:
        return f"no {dtype}"
    for x in (q, *others):
        if not isinstance(x, Tensor):
            return "keys and values are not on the device"
        if x.dtype != dtype or not x.is_cpu:
            return f"the queries are {dtype} on cpu and keys or values {x.dtype} on {x.device.type}"
        if x.shape[-1] % LANES:
            return f"a head size of {x.shape[-1]} is not a multiple of {LANES}"
        if gradients and x.requires_grad:
            return "it does not support gradients"
    return unavailable_reason()


def group_size(heads: int, sharing: int) -> int:
    """``heads / sharing``; raises ``ValueError`` if it is no whole number."""
    if heads < 1 or sharing < 1 or heads % sharing:
        raise ValueError(f"{heads} heads cannot be divided by {sharing}")
    return heads // sharing


def tile_tokens(heads: int, sharing: int) -> int:
    """How many tokens of a group's heads fill a tile."""
    return max(1, _TILE // group_size(heads, sharing))


def run(name: str, items: int, packed: bytes, numbers: int | None = None) -> None:
    """Run a kernel on all its items, on torch's threads if there is enough work for several.

    Args:
        packed: the structure that it takes. The caller keeps the tensors whose addresses are in it.
        numbers: about how many stored numbers it reads; None for what is always enough for several threads.

    Raises:
        ValueError: an index or a position leads outside of its tensor; nothing was done.
        MemoryError: there was not enough.
    """
    if items:
        run_steps([(name, items)], packed, numbers)


def run_steps(steps: Sequence[Step], packed: bytes, numbers: int | None = None, threads: int | None = None) -> None:
    """``run`` for kernels that follow one another, each on items of its own and all given the same structure.

    Args:
        threads: how many run them; by ``numbers`` unless given.
    """
    current = _settings.get()
    if threads is None:
        one = len(steps) == 1 and steps[0][1] == 1
        alone = one or (numbers is not None and numbers < 2 * current.numbers_per_thread)
        # Never on some of torch's threads: OpenMP would end the others, and start them again the next time.
        threads = 1 if alone else torch.get_num_threads()
        if current.around is not None:
            for step in steps:
                current.around(step[0], threads, partial(run_steps, [step], packed, threads=threads))
            return
    library = _loaded()
    assert not isinstance(library, str)
    # A copy of this process has none of its threads.
    start = _openmp() if threads > 1 and current.openmp and os.getpid() == _PROCESS else None
    packed_steps, check_at = _packed_steps(tuple(steps))
    wrong = library.longspan_run(packed_steps, len(steps), check_at, packed, threads, start)
    if wrong:
        raise ValueError(f"the kernel {steps[0][0]} cannot run: {wrong.decode()}")
    if wrong is not None:
        raise MemoryError(f"no memory for {steps[-1][0]}")


@lru_cache(maxsize=512)
def _packed_steps(steps: tuple[Step, ...]) -> tuple[bytes, int | None]:
    """Steps as C takes them, and the address of the check that comes before the first."""
    check = _CHECKS.get(steps[0][0])
    packed = b"".join(_STEP.pack(_address(name), items) for name, items in steps)
    return packed, None if check is None else _address(f"check_{check}")


@cache
def _address(name: str) -> int | None:
    return ctypes.cast(getattr(_loaded(), f"longspan_{name}"), _ADDRESS).value


@lru_cache(maxsize=1)
def _openmp() -> int | None:
    """The address of ``GOMP_parallel`` in the OpenMP that torch brings; None if that has no such entry."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, _ADDRESS).value
    except (AttributeError, OSError, TypeError):  # TypeError: on Windows None names no library
        return None
