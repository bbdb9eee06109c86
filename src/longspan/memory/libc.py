"""The system's C library, with the calls that map memory and advise about it."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def libc() -> Any:
    """The library, once for the process."""
    libc = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = [address, size, number, number, number, ctypes.c_int64]
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = [address, size]
    libc.mprotect.argtypes = libc.madvise.argtypes = [address, size, number]
    return libc


def give_back() -> None:
    """Return freed memory to the system that the C library keeps for later: glibc does with tensors of up to 32 MB."""
    if sys.platform == "linux" and (trim := getattr(libc(), "malloc_trim", None)) is not None:
        trim(0)
