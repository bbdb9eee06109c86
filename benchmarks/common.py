"""What the benchmarks share: turns within a round, the clock, results with their machine, and tables in documents."""

from __future__ import annotations

import csv
import importlib.metadata
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

Times = list[dict[str, float]]  # for each round, seconds by contestant


def clock(threads: int, device: str = "cpu") -> Callable[[], float]:
    """With one thread the process's own time, which leaves out what other programs had; else the wall's.

    On a GPU the wall's, after everything that was asked of it is done.
    """
    if device != "cpu":

        def done() -> float:
            torch.cuda.synchronize()
            return time.perf_counter()

        return done
    return time.process_time if threads == 1 else time.perf_counter


def take_turns(
    runs: dict[str, Callable[[], object]],
    rounds: int,
    now: Callable[[], float],
    after: Callable[[str], object] = lambda name: None,
) -> Times:
    """Seconds of each run in each round; another one begins every round. ``after`` cleans up, untimed."""
    times: Times = []
    names = list(runs)
    for n in range(rounds):
        times.append({})
        for name in names[n % len(names) :] + names[: n % len(names)]:
            begun = now()
            runs[name]()
            times[-1][name] = now() - begun
            after(name)
    return times


def ratio(times: Times, name: str, over: str) -> float:
    """The median over rounds of the ratio within a round, so that a busy moment slows both."""
    return statistics.median(each[name] / each[over] for each in times)


def cpu_model() -> str:
    """The processor's name, as far as the system says."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def version(name: str) -> str | None:
    """The installed version of a distribution; None if there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine(threads: int, device: str = "cpu") -> dict[str, object]:
    """What a figure depends on besides the code."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    return {"device": device, "cpu": cpu_model(), "threads": threads, **versions}


def save(
    path: Path,
    rows: Sequence[dict[str, object]],
    threads: int,
    clock_name: str | None = None,
    device: str = "cpu",
    **more: object,
) -> None:
    """Write rows as CSV, each with the machine; columns that a row does not have are empty.

    Raises:
        ValueError: there is nothing to write, and an empty file would take the place of results.
    """
    if not rows:
        raise ValueError(f"no rows for {path.name}; nothing was measured, and the file is left as it is")
    clock_name = clock_name or ("cpu" if threads == 1 and device == "cpu" else "wall")
    path.parent.mkdir(parents=True, exist_ok=True)
    body = [{**row, **machine(threads, device), "clock": clock_name, **more} for row in rows]
    columns = dict.fromkeys(name for row in body for name in row)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(columns), restval="")
        writer.writeheader()
        writer.writerows(body)


def load(path: Path) -> list[dict[str, str]]:
    """The rows that ``save`` wrote, all cells as text."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def blocks(length: int, size: int) -> Iterable[tuple[int, int]]:
    """``0 : length`` in runs of at most ``size``."""
    return ((a, min(a + size, length)) for a in range(0, length, size))


def between(text: str, marks: tuple[str, str], lines: Iterable[str]) -> str:
    """A document with these lines in the place of what stands between its two marks.

    Raises:
        ValueError: it has not both marks, in their order.
    """
    before, begun, rest = text.partition(marks[0])
    _, ended, after = rest.partition(marks[1])
    if not begun or not ended:
        raise ValueError(f"the document has no {marks[0]} … {marks[1]}, between which the table goes; put them back")
    return "\n".join((before + begun, *lines, ended + after))
