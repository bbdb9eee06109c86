"""Huge pages: of chosen tokens, which lie here and there, a processor with small ones spends its time on addresses."""

from __future__ import annotations

import mmap

from torch import Tensor

from longspan.memory.libc import libc

HUGE = 2**21  # bytes; small pages have 4,096


def advise_huge(x: Tensor, part: int) -> None:
    """Ask the system to keep a CPU tensor of any shape in huge pages, if it has them: advice, which it may leave.

    Args:
        part: bytes that fill up by themselves, from their begin on: the last page of each is memory before it is
            needed, so parts of less than half a page are left alone.
    """
    if x.device.type != "cpu" or part < HUGE // 2 or mmap.PAGESIZE != 4096 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    first = -(-x.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (x.data_ptr() + x.numel() * x.element_size()) // mmap.PAGESIZE * mmap.PAGESIZE
    libc().madvise(first, last - first, mmap.MADV_HUGEPAGE)
