"""The disks of this machine."""

from __future__ import annotations

import os
from pathlib import Path

IN_MEMORY = {"tmpfs", "ramfs"}  # file systems that the system keeps in memory


def file_system(folder: Path) -> str | None:
    """The kind of file system a folder lies on, if the system reports it (Linux)."""
    device = os.stat(folder).st_dev
    ours = f"{os.major(device)}:{os.minor(device)}" if hasattr(os, "major") else ""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        mount, _, rest = line.partition(" - ")
        if mount.split()[2] == ours:
            return rest.split()[0]
    return None
