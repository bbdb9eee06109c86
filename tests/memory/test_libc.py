"""Freed memory goes back to the system: what the C library keeps of a long prompt's tensors."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import longspan
from longspan.hf import forward
from support.hf_models import make, prompts

KEPT = """
import torch
from longspan.memory.libc import give_back
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
many = [torch.ones(2**18) for _ in range(200)]  # 200 MiB
last = torch.ones(2**18)  # behind them, so that they are no end that could be cut off
del many
before = resident()
give_back()
print((before - resident()) // 2**20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone has a call for it")
def test_freed_memory_goes_back():
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**26), "MALLOC_TRIM_THRESHOLD_": str(2**40)}
    ran = subprocess.run([sys.executable, "-c", KEPT], env=env, capture_output=True, text=True, check=True)
    assert int(ran.stdout) > 150


@pytest.mark.parametrize(("tokens", "calls"), [(1024, 1), (1023, 0), (1, 0)])
def test_it_does_after_a_long_forward_alone(monkeypatch, tokens, calls):
    model, given = make("llama"), []
    longspan.extend(model, "dca")
    monkeypatch.setattr(forward, "give_back", lambda: given.append(1))
    with torch.no_grad():
        model(prompts(1, tokens), use_cache=True)
    assert len(given) == calls
