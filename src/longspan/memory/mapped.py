"""Where a buffer's bytes lie: memory, or a sparse file that is mapped."""

from __future__ import annotations

import errno
import math
import mmap
import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from longspan.errors import CacheError
from longspan.memory.huge_pages import advise_huge

ROOM = 2**20  # tokens a new file has addresses for


class Kind(NamedTuple):
    """The kind of a buffer: tokens of ``heads`` times ``size`` numbers in ``batch`` rows, on ``device``."""

    batch: int
    heads: int
    size: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, x: Tensor) -> Kind:
        """That of ``[B, H, any, D]``."""
        return cls(x.shape[0], x.shape[1], x.shape[3], x.dtype, x.device)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token of one head of one row."""
        return self.size * self.dtype.itemsize

    def nbytes(self, tokens: int) -> int:
        """Bytes of so many tokens, of all heads and rows."""
        return self.batch * self.heads * tokens * self.token_bytes


class RefusedError(CacheError, MemoryError):
    """The system refuses memory for a cache."""


class TokenBlock:
    """Where tokens of one kind lie.

    Attributes:
        kind: what it was made for.
        tensor: ``[B, H, room, D]``.
        capacity: tokens of it that may be written.
    """

    kind: Kind
    tensor: Tensor
    capacity: int

    @property
    def device(self) -> torch.device:
        """Where they lie."""
        return self.tensor.device

    @property
    def nbytes(self) -> int:
        """Bytes allocated, in memory or on disk."""
        return self.kind.nbytes(self.capacity)

    def part(self, start: int, stop: int) -> Tensor:
        """Tokens ``[start, stop)``, ``[B, H, n, D]``, a view if they lie as they are read."""
        return self.tensor[:, :, start:stop]

    def widen(self, tokens: int) -> bool:
        """Have ``tokens`` in place; False if that is impossible."""
        return tokens <= self.capacity

    def affords(self, tokens: int) -> bool:
        """Whether ``tokens`` may be asked for, as far as that is known before."""
        return True

    def reopen(self, start: int) -> None:
        """Let the tokens from ``start`` on be written once more."""

    def check_process(self) -> None:
        """Raise ``CacheError`` if another process would see writes to this memory."""

    def write(self, start: int, x: Tensor, rows: slice | None = None) -> None:
        """Put ``[B, H, T, D]`` at token ``start``, into ``rows`` of the batch or all."""
        to = self.tensor if rows is None else self.tensor[rows]
        to.narrow(2, start, x.shape[2]).copy_(x)


class Memory(TokenBlock):
    """``[B, H, capacity, D]`` in the memory of ``device``, or of the host.

    Never pinned: torch rounds pinned memory up to a power of two, keeps what is freed, and has all of it in memory from
    the start, so that a growing cache would take up to four times its size. Nothing is copied from here without a wait,
    for which it would have to be.
    """

    @torch.inference_mode(False)  # made in inference mode, it could not be written to outside it
    def __init__(self, kind: Kind, capacity: int, *, host: bool) -> None:
        shape = kind.batch, kind.heads, capacity, kind.size
        device = torch.device("cpu") if host else kind.device
        self.tensor = torch.empty(shape, dtype=kind.dtype, device=device)
        advise_huge(self.tensor, capacity * kind.token_bytes)
        self.kind, self.capacity = kind, capacity


class Mapped(TokenBlock):
    """``[B, H, room, D]`` in a file of its own, of which ``capacity`` tokens have disk blocks.

    The file is sparse: each head of each row has addresses for ``room`` tokens from the start and blocks for those that
    are asked for, so it grows in place. It is mapped shared, so its pages are the file's and not the process's: they do
    not count as data (``RLIMIT_DATA``), and the system writes them out when memory is short. Blocks are allocated first
    and written then, for a full disk would otherwise end the process by a signal. The file has no name, and goes with
    the last tensor that shows it.
    """

    @torch.inference_mode(False)
    def __init__(self, kind: Kind, capacity: int, directory: Path | None) -> None:
        self._where = directory if directory is not None else Path(tempfile.gettempdir())
        self.kind, self.capacity, self._process = kind, 0, os.getpid()
        try:
            # Left open: it is closed with this object, and takes its disk space along.
            self.file = tempfile.TemporaryFile(prefix="longspan-", dir=directory, buffering=0)  # noqa: SIM115
            self._pages = self._map(capacity)
        except OSError as error:
            raise self._failure(error, capacity) from error
        self._allocate(capacity)
        self.tensor = torch.frombuffer(self._pages, dtype=kind.dtype).view(
            kind.batch, kind.heads, self._room, kind.size
        )

    def _map(self, tokens: int) -> mmap.mmap:
        """Map the file with as much room as the system grants, at least ``tokens``."""
        # The mapping would keep a descriptor of its own, and a model of many layers has a store for each.
        options = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        self._room = max(ROOM, 4 * tokens)
        while True:
            size = self.kind.nbytes(self._room)
            try:
                self.file.truncate(size)
                return mmap.mmap(self.file.fileno(), size, **options)
            except (OSError, OverflowError):
                # A limit on addresses or on the size of files, or a file system that knows no holes.
                if self._room <= tokens:
                    raise
                self._room = max(tokens, self._room // 4)

    def widen(self, tokens: int) -> bool:
        """Give ``tokens`` disk blocks in place; False when there are no addresses for them."""
        if self.capacity < tokens <= self._room:
            self._allocate(tokens)
        return tokens <= self.capacity

    def affords(self, tokens: int) -> bool:
        """Whether the disk has space for ``tokens``, as far as it tells."""
        kept = self.capacity if tokens <= self._room else 0
        return self.kind.nbytes(tokens - kept) <= free_space(self.file.fileno())

    def check_process(self) -> None:
        """See ``TokenBlock``: a process that was forked has the same file, not a copy as of memory."""
        if os.getpid() != self._process:
            raise CacheError(
                "the cache lies in files of the parent process, and both processes would write to them; continue "
                "with a copy of it (copy.deepcopy), or start a new cache here"
            )

    def write(self, start: int, x: Tensor, rows: slice | None = None) -> None:
        """As of ``TokenBlock``. A page written first would be read first, with megabytes of empty pages around it."""
        if hasattr(mmap, "MADV_RANDOM"):
            self._pages.madvise(mmap.MADV_RANDOM)
        super().write(start, x, rows)
        if hasattr(mmap, "MADV_RANDOM"):
            self._pages.madvise(mmap.MADV_NORMAL)

    def _allocate(self, tokens: int) -> None:
        file, token, more = self.file.fileno(), self.kind.token_bytes, tokens - self.capacity
        try:
            # Asked first, since blocks that were allocated before the disk turned out to be full would stay.
            if self.kind.nbytes(more) > free_space(file):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            for row in range(self.kind.batch * self.kind.heads):
                _reserve_blocks(file, (row * self._room + self.capacity) * token, more * token)
        except OSError as error:
            raise self._failure(error, tokens) from error
        self.capacity = tokens

    def _failure(self, error: OSError, tokens: int) -> CacheError:
        size = self.kind.nbytes(tokens) / 2**20
        return CacheError(
            f"the cache cannot have {size:,.1f} MiB for {tokens:,} tokens of a layer in {self._where}: "
            f"{error.strerror or error}; nothing was lost. Make room there, or pass kv_dir=, a folder on another disk"
        )


def free_space(file: int) -> float:
    """Free bytes of the disk of an open file; infinity if the system does not say."""
    if not hasattr(os, "fstatvfs"):
        return math.inf
    disk = os.fstatvfs(file)
    return disk.f_bavail * disk.f_frsize


def _reserve_blocks(file: int, start: int, size: int) -> None:
    if not hasattr(os, "posix_fallocate"):
        return  # the free space was asked; there is nothing better
    try:
        os.posix_fallocate(file, start, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot
            raise
