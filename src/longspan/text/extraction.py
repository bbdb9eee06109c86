"""The text of PDF and HTML files, extracted in a process of its own with limits of time and memory.

A file from anybody may make its parser loop, or fill the memory; then that process ends, and this one goes on.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import Any, TypeVar

from longspan.errors import DocumentError
from longspan.text.extract import extract

T = TypeVar("T")
SECONDS, MEMORY, SIZE = 60.0, 2 * 2**30, 64 * 2**20  # the limits of a file unless others are given
_AT_ONCE = 2  # processes
_MOST_SECONDS = 10.0**6
_GRACE = 5  # seconds beyond the limit, after which the process ends itself if the one that waits for it was killed
_REFUSED, _TOO_LONG, _TOO_LARGE, _NO_ROOM = 3, 4, 5, 6  # exit codes
_LOG = logging.getLogger("longspan.text.extraction")


class Extractor:
    """Extracts texts, two at a time.

    Args:
        seconds: for one file. memory: bytes of the process that extracts it; Linux enforces them.
        longest: bytes of a text in UTF-8.
        remedy: what is to be done about a file that takes more. defect: called with what is wrong with a file.
    """

    def __init__(
        self,
        *,
        seconds: float,
        memory: int,
        longest: int,
        remedy: str = "upload the text itself",
        defect: Callable[[str], None] | None = None,
    ) -> None:
        self._remedy, self._defect = remedy, defect
        # Numbers beyond these mean no limit, and the system takes none.
        self._seconds, self._memory, self._longest = min(seconds, _MOST_SECONDS), min(memory, sys.maxsize), longest
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="longspan-extraction")
        self._lock, self._closed = Lock(), False
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._pending: set[Future[Any]] = set()

    @property
    def pending(self) -> int:
        """Calls that run or wait."""
        return sum(not one.done() for one in list(self._pending))

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Make a call that extracts, in a thread of its own: others wait for these, and nothing else does."""
        future = self._pool.submit(call)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def text_of(self, path: Path, out: Path | None = None) -> str:
        """The text of a PDF or HTML file, by its name's suffix.

        Args:
            out: where the text is put, for a while; beside the file if it is not given.

        Raises:
            DocumentError: there is no text in it, or it takes more than the limits. OSError: the disk is full.
        """
        out = path.with_name(f"{path.name}.text") if out is None else out
        try:
            code, said = self._run(path, out)
            if code == 0:
                if said and self._defect is not None:
                    self._defect(said)
                return out.read_bytes().decode("utf-8")
            if code == _NO_ROOM:
                raise OSError("there is no room for its text")
            if code == _REFUSED:
                raise DocumentError(out.read_bytes().decode("utf-8"))
        finally:
            out.unlink(missing_ok=True)
        if code == _TOO_LONG:
            raise DocumentError(
                f"the text of the file has more than {self._longest:,} bytes; split the file, or {self._remedy}"
            )
        if code == _TOO_LARGE:
            raise DocumentError(f"extracting the text takes more than {self._memory:,} bytes of memory; {self._remedy}")
        if code in (None, -getattr(signal, "SIGALRM", 0)):
            raise DocumentError(f"extracting the text takes more than {self._seconds:g} seconds; {self._remedy}")
        (self._defect or _LOG.warning)(f"extracting a text ended with {code}: {said}")
        # Some parsers raise errors of their own if memory runs out, or end their process.
        raise DocumentError(
            f"the text of the file cannot be extracted with {self._memory:,} bytes of memory; {self._remedy}"
        )

    def _run(self, path: Path, out: Path) -> tuple[int | None, str]:
        """The exit code of an extraction, None if it took too long; and the end of what it wrote to stderr."""
        limits = [f"{self._seconds + _GRACE:.0f}", str(self._memory), str(self._longest)]
        command = [sys.executable, "-P", "-m", __name__, str(path.absolute()), str(out.absolute()), *limits]
        # The server's key is none of its business, and a Ctrl-C at the terminal is for the process that waits.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LONGSPAN_")}
        with TemporaryFile() as log:
            with self._lock:
                if self._closed:
                    raise DocumentError("no text is extracted any more")
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=environment,
                    start_new_session=True,
                )  # fmt: skip
                self._processes.add(process)
            try:
                code: int | None = process.wait(self._seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = None
            except BaseException:
                process.kill()
                process.wait()
                raise
            finally:
                self._processes.discard(process)
            log.seek(max(os.fstat(log.fileno()).st_size - 500, 0))
            return code, " ".join(log.read().decode("utf-8", "replace").split())

    def close(self) -> None:
        """End all extractions."""
        with self._lock:
            self._closed = True
            for process in list(self._processes):
                process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)


def main(path: Path, out: Path, seconds: int, memory: int, longest: int) -> int:
    """Extract the text of a file into another one, in a process that ends after this.

    Args:
        out: gets the text, or the reason why there is none.

    Returns:
        The exit code.
    """
    with suppress(ImportError):  # Windows
        import resource

        signal.alarm(seconds)
        with suppress(ValueError, OSError):  # a system without this limit
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        try:
            with warnings.catch_warnings(record=True, action="always") as caught:
                text = extract(path).encode("utf-8", "replace")
            for warning in caught:
                print(str(warning.message).removeprefix(f"{path}: "), file=sys.stderr)
        except DocumentError as error:
            if isinstance(error.__cause__, MemoryError):
                return _TOO_LARGE
            out.write_text(str(error).removeprefix(f"{path}: "), encoding="utf-8")
            return _REFUSED
        if len(text) > longest:
            return _TOO_LONG
        out.write_bytes(text)
    except MemoryError:
        return _TOO_LARGE
    except OSError:
        return _NO_ROOM
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])))
