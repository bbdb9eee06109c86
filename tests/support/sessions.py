"""Commands in a session of their own, as a terminal starts them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longspan.bundled import heldout_text

RUN = [sys.executable, "-c", "from longspan.cli import main; main()"]


@contextmanager
def hangups(handler: signal.Handlers) -> Iterator[None]:
    """What is started inside ends by SIGHUP (``SIG_DFL``) or, as under nohup, ignores it (``SIG_IGN``)."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def with_document(folder: Path, characters: int) -> Path:
    """The folder, with a ``text`` of so many characters and the ``document`` that the bundled model read of it."""
    (folder / "text").write_text(heldout_text()[:characters])
    subprocess.run([*RUN, "read", "text", "--model", "bundled", "--out", "document"], cwd=folder, check=True)
    return folder


def left_of(session: int) -> list[str]:
    """The processes of a session that are still there."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                state, _, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(of) == session and state != "Z":
                found.append(folder.name)
    return found


def catches(pid: int, number: int) -> bool:
    """Whether a process handles a signal itself."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (number - 1) & 1)
