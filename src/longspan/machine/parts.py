"""Where tokens lie in a file, in pages of any system, and how bytes are read from there."""

from __future__ import annotations

import errno
import math
import os
from typing import NamedTuple

ALIGN = 16384  # bytes; the pages of today's systems have 4,096 or 16,384


class Part(NamedTuple):
    """Where tokens ``[first, stop)`` of a tensor ``[1, H, N, D]`` lie in a file, head after head.

    Attributes:
        file: descriptor of the open file, which is at least as long as this says.
        offset: byte of the first head's first token, a multiple of ``ALIGN``.
        row_bytes: from one head to the next, a multiple of ``ALIGN``.
        first: a multiple of ``unit(kind)``.
    """

    file: int
    offset: int
    row_bytes: int
    first: int
    stop: int


def unit(token_bytes: int) -> int:
    """The fewest tokens of one head that are a multiple of ``ALIGN`` bytes."""
    return ALIGN // math.gcd(ALIGN, token_bytes)


def read_into(file: int, at: int, room: memoryview) -> None:
    """Fill ``room`` with the bytes of a file from ``at`` on.

    Raises:
        OSError: the file ends before.
    """
    while room:
        if hasattr(os, "pread"):
            got = os.pread(file, min(len(room), 2**30), at)
        else:  # Windows
            os.lseek(file, at, os.SEEK_SET)
            got = os.read(file, min(len(room), 2**30))
        if not got:
            raise OSError(errno.EIO, "the file ends too soon")
        room[: len(got)] = got
        room, at = room[len(got) :], at + len(got)
