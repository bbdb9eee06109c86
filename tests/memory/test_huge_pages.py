"""Large caches ask for huge pages; small ones do not."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from longspan.memory import Buffer, huge_pages
from longspan.memory.huge_pages import HUGE
from support.mappings import flags_at

HAS_HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not HAS_HUGE.exists(), reason="the system has no transparent huge pages")
@pytest.mark.skipif(mmap.PAGESIZE != 4096, reason="huge pages are of another size")
def test_a_large_buffer_asks_for_huge_pages():
    buffer, like, tokens = Buffer(), torch.zeros(1, 3, 1, 128, dtype=torch.bfloat16), 2 * HUGE // 256 + 1
    buffer.reserve(like, tokens)
    assert "hg" in flags_at(buffer.allocated.data_ptr() + buffer.nbytes // 2)
    buffer.write(tokens - 1, like + 1)
    assert (buffer.allocated[:, :, tokens - 1] == 1).all()


def test_a_small_one_does_not(monkeypatch):
    monkeypatch.setattr(huge_pages, "libc", None)
    Buffer().reserve(torch.zeros(1, 3, 1, 128), 1000)
