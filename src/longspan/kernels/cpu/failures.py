"""Why the library could not be compiled, remembered between processes while the reason may hold.

A note lies where the library would, under a name that follows from the sources, the compiler's version, its flags and
the processor; a note of others is never found. It holds for a day, as what a compiler needs besides (headers, an
assembler, time) can change unseen; no longer than the compiler's file is the same; and if room was missing, until
there is more of it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from longspan import files

HOLDS = 24 * 3600  # seconds
_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
_MORE = 16 << 20  # bytes more than there were then: room that may have been what was missing


class Note:
    """The note of one library.

    Args:
        path: where it lies, or will.
        compiler: its file.
    """

    def __init__(self, path: Path, compiler: str) -> None:
        self._path, self._compiler = path, compiler

    def write(self, why: str, place: Path) -> None:
        """Write the note, or nothing if it cannot be written.

        Args:
            why: what the compiler said.
            place: the folder that it wrote to.
        """
        with suppress(OSError):
            body: dict[str, Any] = {"why": why, "time": time.time(), "compiler": self._identity()}
            if any(word in why for word in _FULL):
                body |= {"place": str(place), "free": shutil.disk_usage(place).free}
            files.write(self._path, json.dumps(body) + "\n")

    def read(self) -> str | None:
        """Why there is no library, and how to try again; None if nothing is known or it no longer holds."""
        try:
            body = json.loads(self._path.read_text(encoding="utf-8"))
            holds = (
                0 <= time.time() - body["time"] < HOLDS
                and body["compiler"] == self._identity()
                and ("place" not in body or shutil.disk_usage(body["place"]).free < body["free"] + _MORE)
            )
            why = f"{body['why']} (so it was a while ago; delete {self._path} to try again)"
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if holds:
            return why
        with suppress(OSError):
            self._path.unlink()
        return None

    def _identity(self) -> list[int]:
        stat = os.stat(self._compiler)
        return [stat.st_ino, stat.st_size, stat.st_mtime_ns]
