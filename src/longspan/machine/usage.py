"""An answer's costs beside time: bytes read from disk, and memory that is the process's own."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

from longspan.machine.memory import number_in

_EVERY = 0.01  # seconds between two looks at the memory


def bytes_read() -> int | None:
    """Bytes read from storage for this process since it began; None if the system does not report them."""
    return number_in(Path("/proc/self/io"), r"read_bytes:\s+")


def anonymous() -> int | None:
    """Bytes of memory that belong to no file (RssAnon) now; None if the system does not report them."""
    kilobytes = number_in(Path("/proc/self/status"), r"RssAnon:\s+")
    return None if kilobytes is None else kilobytes << 10


class Peak:
    """The most ``anonymous`` memory of a ``with`` block, by a thread that looks every 10 ms: what is shorter is missed.

    Attributes:
        most: in bytes; None if the system does not report it.
    """

    def __init__(self) -> None:
        self.most: int | None = None
        self._ended, self._thread = Event(), Thread(target=self._look, name="longspan-memory", daemon=True)

    def __enter__(self) -> Peak:
        self.most = anonymous()
        if self.most is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self.most is not None:
            self._thread.join()

    def _look(self) -> None:
        while True:
            ended = self._ended.wait(_EVERY)
            self.most = max(self.most or 0, anonymous() or 0)
            if ended:
                return
