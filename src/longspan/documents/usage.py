"""What an answer costs beside time: bytes read from disk, and memory that is the process's own."""

from __future__ import annotations

from pathlib import Path


def bytes_read() -> int | None:
    """Bytes that this process has had read from storage, since it began; None where the system does not say."""
    return _field("/proc/self/io", "read_bytes:")


def anonymous() -> int | None:
    """Bytes of memory that are no file's (RssAnon), at this moment; None where the system does not say."""
    kilobytes = _field("/proc/self/status", "RssAnon:")
    return None if kilobytes is None else kilobytes << 10


def _field(path: str, name: str) -> int | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), None)
