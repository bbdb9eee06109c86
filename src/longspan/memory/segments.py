"""Tokens that lie in files, mapped as they lie: read-only if they are whole pages, private if a page is shared.

A file is never written through such a mapping. New tokens go to memory of this process, behind those of the files.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch

from longspan.errors import CacheError
from longspan.machine.parts import ALIGN, Part, read_into, unit
from longspan.memory.libc import libc
from longspan.memory.mapped import Kind, Memory, RefusedError, TokenBlock

AHEAD = 2**17  # tokens that a mapping has addresses for behind those of its files
STEP = 256  # tokens that are made writable at once
_FIXED, _NONE = 0x10, 0  # MAP_FIXED and PROT_NONE, which mmap does not name; alike on Linux and macOS

# How tokens in a file will be read: few of them, here and there; from the first to the last; or all of them, soon.
Access = Literal["few", "in order", "whole"]
_ADVICE = {"few": getattr(mmap, "MADV_RANDOM", None), "whole": getattr(mmap, "MADV_WILLNEED", None)}


def can_map() -> bool:
    """Whether this system maps files at chosen addresses, in pages that ``ALIGN`` is a multiple of."""
    return os.name == "posix" and ALIGN % mmap.PAGESIZE == 0


def lay(kind: Kind, parts: Sequence[Part], length: int, *, host: bool, access: Access) -> TokenBlock:
    """The first ``length`` tokens of files for a buffer of this kind, ``[1, H, length, D]``, and room behind them.

    Mapped if the buffer lies in the CPU's memory and the system can; else read into memory.

    Args:
        parts: in the order of their tokens; each begins where the one before ends, or earlier.
        host: whether the buffer lies in the CPU's memory though ``kind`` is of another device.
        access: how they will be read, which tells the system whether to read ahead.
    """
    host = host or kind.device.type == "cpu"
    if host and can_map() and length and kind.heads * kind.token_bytes:
        return Segments(kind, parts, length, access=access)
    memory = Memory(kind, length + STEP, host=host)
    for part in parts:
        stop = min(part.stop, length)
        if stop <= part.first:
            continue
        for head in range(kind.heads):
            raw = bytearray((stop - part.first) * kind.token_bytes)
            read_into(part.file, part.offset + head * part.row_bytes, memoryview(raw))
            row = torch.frombuffer(raw, dtype=kind.dtype).view(1, 1, -1, kind.size)
            memory.tensor[:, head : head + 1, part.first : stop] = row.to(memory.tensor.device)
    return memory


class Segments(TokenBlock):
    """``[1, H, capacity, D]`` of parts of files and the memory behind them, at consecutive addresses for each head.

    Whole pages of the files are mapped read-only, so they count neither as data (``RLIMIT_DATA``) nor as memory of the
    process, and every process that maps them has the same ones. The page in which the last token ends is private, a
    copy from the first write on, and so are those that ``reopen`` names. Behind it come pages of the process, made
    writable as they are asked for.

    Raises:
        CacheError: the system has no addresses left.
    """

    @torch.inference_mode(False)
    def __init__(self, kind: Kind, parts: Sequence[Part], length: int, *, access: Access) -> None:
        self.kind, self._token = kind, kind.token_bytes
        region, room = self._reserve(length)
        self._region, self._row = region, room * self._token
        for part, after in zip(parts, [*(p.first for p in parts[1:]), length], strict=True):
            self._map(part, min(after, part.stop, length), last=after == length, access=access)
        self._sealed = length * self._token // mmap.PAGESIZE * mmap.PAGESIZE  # bytes of each head that are read-only
        self._writable = _up(length * self._token, mmap.PAGESIZE)
        self.capacity = self._writable // self._token
        view = (ctypes.c_char * (kind.heads * self._row)).from_address(region.address)
        view.region = region  # type: ignore[attr-defined]  # kept as long as any tensor shows it
        self.tensor = torch.frombuffer(view, dtype=kind.dtype).view(1, kind.heads, room, kind.size)
        self._room = room

    def _reserve(self, length: int) -> tuple[_Region, int]:
        """Addresses for ``length`` tokens of each head, and for as many behind them as the system grants."""
        step, ahead = unit(self._token), AHEAD
        while True:
            room = -(-(length + ahead) // step) * step
            try:
                return _Region(self.kind.nbytes(room)), room
            except CacheError:  # a limit on addresses
                if ahead <= STEP:
                    raise
                ahead //= 4

    def _map(self, part: Part, stop: int, *, last: bool, access: Access) -> None:
        begin, end = part.first * self._token, stop * self._token
        whole = end if not last else end // mmap.PAGESIZE * mmap.PAGESIZE
        for head in range(self.kind.heads):
            at, place = head * self._row, part.offset + head * part.row_bytes
            if whole > begin:
                self._region.file(at + begin, whole - begin, mmap.PROT_READ, part.file, place, access)
            if end > whole:
                both = mmap.PROT_READ | mmap.PROT_WRITE
                self._region.file(at + whole, mmap.PAGESIZE, both, part.file, place + whole - begin, access)

    def widen(self, tokens: int) -> bool:
        """Make ``tokens`` writable in place; False when there are no addresses for them."""
        if self.capacity < tokens <= self._room:
            end = min(_up((tokens + STEP) * self._token, mmap.PAGESIZE), self._row)
            for head in range(self.kind.heads):
                self._region.open(head * self._row + self._writable, end - self._writable)
            self._writable, self.capacity = end, end // self._token
        return tokens <= self.capacity

    def reopen(self, start: int) -> None:
        """See ``TokenBlock``; the files stay as they are."""
        begin = start * self._token // mmap.PAGESIZE * mmap.PAGESIZE
        if begin < self._sealed:
            for head in range(self.kind.heads):
                self._region.open(head * self._row + begin, self._sealed - begin)
            _mappings[self._region.address] += self.kind.heads  # what was whole is divided
            self._sealed = begin

    def affords(self, tokens: int) -> bool:
        """Whether ``tokens`` may be asked for: a few more than there are, since what is writable counts as data."""
        return tokens <= self.capacity + STEP


_mappings: dict[int, int] = {}  # of each region, by its address; single operations of a dict need no lock


def mappings() -> int:
    """Mappings that this process has for tokens in files, at most: the system may join those beside one another."""
    return sum(list(_mappings.values()))


@lru_cache(maxsize=1)
def most_mappings() -> float:
    """Mappings that the system grants a process (``vm.max_map_count``); infinite if it does not report that."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_bytes())
    except (OSError, ValueError):
        return math.inf


class _Region:
    """Addresses that belong to this object, given back with it."""

    def __init__(self, size: int) -> None:
        self.size, self.address = size, 0
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self.address = self._mmap(None, size, _NONE, flags, -1, 0)
        _mappings[self.address] = 1

    def file(self, at: int, size: int, protection: int, file: int, offset: int, access: Access) -> None:
        """Map ``size`` bytes of a file at ``at``, which divides what is there."""
        self._mmap(self.address + at, size, protection, mmap.MAP_PRIVATE | _FIXED, file, offset)
        _mappings[self.address] += 2
        advice = _ADVICE.get(access)
        if advice is not None:
            libc().madvise(self.address + at, size, advice)

    def open(self, at: int, size: int) -> None:
        """Let the process write to ``size`` bytes at ``at``."""
        if size and libc().mprotect(self.address + at, size, mmap.PROT_READ | mmap.PROT_WRITE):
            raise self._failure(size)

    def _mmap(self, address: int | None, size: int, protection: int, flags: int, file: int, offset: int) -> int:
        found = libc().mmap(address, size, protection, flags, file, offset)
        if found in (None, ctypes.c_void_p(-1).value):
            raise self._failure(size)
        return int(found)

    def _failure(self, size: int) -> RefusedError:
        why = os.strerror(ctypes.get_errno())
        return RefusedError(
            f"{size / 2**20:,.1f} MiB of a cache cannot be mapped: {why}; raise the limit on memory or on mappings "
            "(ulimit -v, ulimit -d, vm.max_map_count), or ask fewer questions at once"
        )

    def __del__(self) -> None:
        if self.address:
            del _mappings[self.address]  # first: another thread may be given the same address at once
            libc().munmap(self.address, self.size)


def _up(size: int, to: int) -> int:
    return -(-size // to) * to
