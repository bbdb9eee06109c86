"""The memory of a process while something runs, and runs that each have a process of their own. Linux only."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

STATUS = ("RssAnon", "VmData", "RssFile", "RssShmem")


def resident() -> int:
    """Anonymous memory of this process now, in bytes."""
    return Peaks().look()["RssAnon"]


class Peaks:
    """The highest values of /proc/self/status while it runs, in bytes, by a thread that looks every 10 ms."""

    def __init__(self) -> None:
        self.peaks = dict.fromkeys(STATUS, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def look(self) -> dict[str, int]:
        lines = Path("/proc/self/status").read_text().splitlines()
        found = dict(line.split(":", 1) for line in lines if ":" in line)
        now = {name: int(found[name].split()[0]) * 1024 for name in STATUS}
        self.peaks = {name: max(value, self.peaks[name]) for name, value in now.items()}
        return now

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.look()

    def __enter__(self) -> Peaks:
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.look()


class DevicePeaks:
    """What each of several contestants takes of a GPU's memory, above what was there before; on a CPU it sees nothing.

    Attributes:
        peaks: bytes by contestant, of the largest run.
    """

    def __init__(self, device: str) -> None:
        self._on, self.peaks = device != "cpu", dict[str, int]()
        self._held: dict[str, int] = {}

    def filled(self, name: str, fill: Callable[[], object]) -> None:
        """``fill()``; what it leaves in memory is the contestant's."""
        before = torch.cuda.memory_allocated() if self._on else 0
        fill()
        if self._on:
            gc.collect()
            self._held[name] = torch.cuda.memory_allocated() - before

    def begin(self) -> None:
        """A run follows."""
        if self._on:
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()

    def ran(self, name: str) -> None:
        """The contestant's run is over, and what it left is still there."""
        if self._on:
            peak = torch.cuda.max_memory_allocated() - self._before + self._held.get(name, 0)
            self.peaks[name] = max(peak, self.peaks.get(name, 0))


class Failed(RuntimeError):
    """A process of a benchmark raised, or died.

    Attributes:
        reason: the message without what was run, which may be long.
    """

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.reason = reason


def alone(work: Callable[..., Any], *given: Any, preload: tuple[str, ...] = ()) -> Any:
    """``work(*given)`` in a new process: what it allocates and leaves behind is its own.

    The process is forked from a clean one that has only imported ``preload``, the first time this is called.

    Raises:
        Failed: it raised, with what it said, or died without a word, as a process does that the system kills for its
            memory.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(theirs, work, given), daemon=True)
    process.start()
    theirs.close()
    try:
        worked, answer = ours.recv()
    except EOFError:
        process.join()
        why = f"died with exit code {process.exitcode} (-9: killed, most often for its memory)"
        raise Failed(f"{work.__name__}{given}", why) from None
    process.join()
    if not worked:
        raise Failed(f"{work.__name__}{given}", answer)
    return answer


def _report(connection: Any, work: Callable[..., Any], given: tuple[Any, ...]) -> None:
    try:
        connection.send((True, work(*given)))
    except Exception as error:
        connection.send((False, f"{type(error).__name__}: {error}"))
