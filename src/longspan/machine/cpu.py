"""The processor of this machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's name for itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def multiplies_bfloat16() -> bool:
    """Whether the processor has products of bfloat16 of its own, which torch's matrix products use."""
    import torch

    capable: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # of torch 2.10 and later
    return any(bool(capable.get(name)) for name in ("avx512_bf16", "amx_bf16", "bf16"))
