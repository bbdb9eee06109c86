"""Handling of Ctrl-C, SIGTERM and SIGHUP: one line on stderr, exit code 130, 143 or 129, and no process left behind.

This module imports only the standard library, so that a command line can call ``install`` before slow imports.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
if hasattr(signal, "SIGHUP"):  # not on Windows
    WORDS[signal.SIGHUP] = "hung up"  # its terminal was closed
_RESEND_AFTER = 0.02  # seconds until a signal that could not be raised is sent again
_PATIENCE = 2.0  # seconds for the main thread to notice a signal; inside a kernel it cannot

_program = "longspan"
_leaving = False
_installed = False
_noticed = threading.Event()


class Stopped(BaseException):
    """A signal requests the end of the process.

    It derives from neither Exception nor KeyboardInterrupt, since handlers of these would print or continue.

    Attributes:
        number: of the signal.
        code: the exit code for the shell, 128 plus the signal's number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def code(self) -> int:
        return 128 + self.number


def install(program: str) -> None:
    """Make signals raise ``Stopped`` in the main thread; during an import they end the process at once.

    An exception during an import would leave an incomplete module, which libraries that probe for optional modules
    would use. A signal that the process ignores, as a background job does, stays ignored.

    Args:
        program: the program's name at the start of the line on stderr.
    """
    global _program, _installed
    _program, _installed = program, True
    for number in WORDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    sys.unraisablehook = _unraisable
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(read_end,), name="longspan signals", daemon=True).start()


def leave(number: int) -> NoReturn:
    """Print that a signal ended the process, and end the process and its workers."""
    global _leaving
    _leaving = True
    _end_workers()
    if threading.current_thread() is threading.main_thread():  # another thread could wait for a blocked write's lock
        _flush()
    with suppress(OSError):
        if os.isatty(1):
            os.write(1, b"\x1b[?25h")  # a progress bar may have hidden the cursor
        os.write(2, f"{_program}: {WORDS.get(signal.Signals(number), 'stopped')}\n".encode())
    os._exit(128 + number)


def last_words(code: int = 0) -> None:
    """Make later signals end a process that called ``install`` at once, since no code remains that handles ``Stopped``.

    If ``code`` is that of a signal, end the process and its workers here: the interpreter removes signal handlers
    during its exit, and a second signal would then bypass this module.
    """
    global _leaving
    _leaving = _installed
    if _installed and code in {128 + number for number in WORDS}:
        _end_workers()
        _flush()
        os._exit(code)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Delay signals to the end of the block, which therefore runs to completion.

    In other threads than the main one this does nothing, as Python raises no signal there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    # getsignal returns None for a handler that Python did not install and cannot restore.
    handlers = {number: handler for number in WORDS if (handler := signal.getsignal(number)) is not None}

    def postpone(number: int, frame: FrameType | None) -> None:
        _noticed.set()
        pending.append(number)

    for number in handlers:
        signal.signal(number, postpone)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if pending:
            signal.raise_signal(pending[0])


def _watch(read_end: int) -> None:
    """End the process if the main thread does not notice a signal: one kernel can take minutes on a long text."""
    while numbers := os.read(read_end, 64):
        for number in numbers:
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


def _unraisable(unraisable: Any) -> None:
    """Resend a signal that arrived in code that cannot raise, for example in ``__del__``, instead of losing it."""
    if not isinstance(unraisable.exc_value, Stopped):
        sys.__unraisablehook__(unraisable)
        return
    timer = threading.Timer(_RESEND_AFTER, os.kill, (os.getpid(), unraisable.exc_value.number))
    timer.daemon = True
    timer.start()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _end_workers() -> None:
    """Kill the processes that multiprocessing started, if it was imported, and remove their folder of sockets."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is None:
        return
    with suppress(Exception):
        for child in processes.active_children():
            child.kill()
    server = sys.modules.get("multiprocessing.forkserver")
    with suppress(Exception):  # the server ends after this process, but only once its imports are complete
        os.kill(server._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[union-attr]
    with suppress(Exception):  # multiprocessing removes it in an exit that does not come
        if processes.parent_process() is None:  # a worker has the name of its parent's
            shutil.rmtree(processes.current_process()._config["tempdir"])
