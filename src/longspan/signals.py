"""Ctrl-C and SIGTERM: one line on stderr, exit code 130 or 143, and no process left behind.

Only the standard library is imported here, so that a command line can call ``install`` before anything that takes long.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_AGAIN = 0.02  # seconds after which a signal that could not be raised is sent again
_PATIENCE = 2.0  # seconds that the main thread has to notice a signal, which it cannot inside a kernel

_program = "longspan"
_leaving = False
_installed = False
_noticed = threading.Event()


class Stopped(BaseException):
    """A signal asks the process to end. No Exception and no KeyboardInterrupt: what catches those would print or go on.

    Attributes:
        code: the exit code that says so to a shell.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def code(self) -> int:
        return 128 + self.number


def install(program: str) -> None:
    """Let signals raise ``Stopped`` in this process's main thread; while something is imported they end it at once.

    An import that is broken off by an exception leaves half a module, and libraries that probe for others go on with
    it. A signal that is ignored, as in a job in the background, stays so.

    Args:
        program: the name that the line on stderr begins with.
    """
    global _program, _installed
    _program, _installed = program, True
    for number in WORDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    sys.unraisablehook = _unraisable
    heard, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(heard,), name="longspan signals", daemon=True).start()


def leave(number: int) -> NoReturn:
    """Say that a signal ended the process and end it, with its workers."""
    global _leaving
    _leaving = True
    _end_workers()
    if threading.current_thread() is threading.main_thread():  # another might wait for the lock of a blocked write
        with suppress(Exception):
            sys.stdout.flush()
        with suppress(Exception):
            sys.stderr.flush()
    with suppress(OSError):
        if os.isatty(1):
            os.write(1, b"\x1b[?25h")  # a progress bar may have hidden the cursor
        os.write(2, f"{_program}: {WORDS.get(signal.Signals(number), 'stopped')}\n".encode())
    os._exit(128 + number)


def last_words(code: int = 0) -> None:
    """From here on a process that called ``install`` only ends: there is nobody left to raise a signal to.

    One that a signal stopped ends here, with its workers: while the interpreter ends it has no handlers any more, and a
    second signal would end the process in its own way.
    """
    global _leaving
    _leaving = _installed
    if _installed and code in {128 + number for number in WORDS}:
        _end_workers()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


@contextmanager
def held() -> Iterator[None]:
    """Signals that come inside wait for the end of the block: for what must not be left half done.

    In another thread than the main one nothing is held, as none is raised there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in WORDS}
    mine = {number: kept for number, kept in before.items() if kept is not None}  # None: not Python's to restore

    def note(number: int, frame: FrameType | None) -> None:
        _noticed.set()
        came.append(number)

    for number in mine:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, kept in mine.items():
            signal.signal(number, kept)
        if came:
            signal.raise_signal(came[0])


def _watch(heard: int) -> None:
    """End the process where the main thread does not notice a signal: one kernel may take minutes over a long text."""
    while told := os.read(heard, 64):
        for number in told:
            if number in WORDS and not _noticed.wait(_PATIENCE):
                leave(number)
        _noticed.clear()


def _stop(number: int, frame: FrameType | None) -> None:
    _noticed.set()
    if _leaving or _importing(frame):
        leave(number)
    raise Stopped(number)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _unraisable(told: Any) -> None:
    """A signal met code that cannot raise, such as a ``__del__``: send it again in a moment instead of losing it."""
    if not isinstance(told.exc_value, Stopped):
        sys.__unraisablehook__(told)
        return
    timer = threading.Timer(_AGAIN, os.kill, (os.getpid(), told.exc_value.number))
    timer.daemon = True
    timer.start()


def _end_workers() -> None:
    """Kill what multiprocessing started, if it was ever imported."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is None:
        return
    with suppress(Exception):
        for child in processes.active_children():
            child.kill()
    server = sys.modules.get("multiprocessing.forkserver")
    with suppress(Exception):  # it ends by itself when this process is gone, but not before its imports are done
        os.kill(server._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[union-attr]
