"""The memory of this machine: all of it, what is free, and what a container or a job leaves of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch

SHARE = 0.8  # of what is free may hold keys and values; the rest is for what a forward computes with
_UNLIMITED = 1 << 60  # version 1 reports at least this much if there is no limit


def free_memory(device: torch.device) -> int | None:
    """Free bytes where tensors of this device lie, or None if the system does not report it.

    On a GPU those that torch holds there unused are among them. In a container or a job, no more than its limit leaves.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    # Linux's own estimate, which counts the page cache as free.
    available = number_in(Path("/proc/meminfo"), r"MemAvailable:\s+") if device.type == "cpu" else None
    if available is None:
        return None
    granted = memory_left()
    return available * 1024 if granted is None else min(available * 1024, granted)


def total_memory() -> int | None:
    """Bytes of the system's memory, or None if it does not report them."""
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_left(root: Path = Path("/")) -> int | None:
    """Bytes that the groups of this process still grant, the page cache counted as free; None without a limit."""
    return min((max(limit - used, 0) for limit, used in _limits(root)), default=None)


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of every group that this process is in, and of those around them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            folder = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be that of the host, of which nothing is seen here but the last group, as root.
        group_folder = folder / path.strip("/")
        for group in (group_folder, *group_folder.parents):
            used = number_in(group / names[1])
            for limit in (number_in(group / name) for name in (names[0], "memory.high")):
                if limit is not None and used is not None and limit < _UNLIMITED:
                    yield limit, used - (number_in(group / "memory.stat", f"{names[2]} ") or 0)
            if group == folder:
                break


def number_in(file: Path, name: str = "") -> int | None:
    """The number that a file of the system says, behind what matches ``name`` in its line; None if it says none."""
    try:
        found = re.search(rf"^{name}(\d+)( kB)?$", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
