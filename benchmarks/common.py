"""What the benchmarks share: turns within a round, the clock, and results with the machine that they are from."""

from __future__ import annotations

import csv
import importlib.metadata
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

Times = list[dict[str, float]]  # for each round, seconds by contestant


def clock(threads: int) -> Callable[[], float]:
    """With one thread the process's own time, which leaves out what other programs had; else the wall's."""
    return time.process_time if threads == 1 else time.perf_counter


def take_turns(runs: dict[str, Callable[[], object]], rounds: int, now: Callable[[], float]) -> Times:
    """Seconds of each run in each round; another one begins every round."""
    times: Times = []
    names = list(runs)
    for n in range(rounds):
        times.append({})
        for name in names[n % len(names) :] + names[: n % len(names)]:
            begun = now()
            runs[name]()
            times[-1][name] = now() - begun
    return times


def cpu_model() -> str:
    """The processor's name, as far as the system says."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine(threads: int, device: str = "cpu") -> dict[str, object]:
    """What a figure depends on besides the code."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    return {"device": device, "cpu": cpu_model(), "threads": threads, **versions}


def save(path: Path, rows: Sequence[dict[str, object]], threads: int, clock_name: str | None = None) -> None:
    """Write rows as CSV, each with the machine."""
    clock_name = clock_name or ("cpu" if threads == 1 else "wall")
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        body = [{**row, **machine(threads), "clock": clock_name} for row in rows]
        writer = csv.DictWriter(file, fieldnames=list(body[0]))
        writer.writeheader()
        writer.writerows(body)
