"""The demonstration's tables while they fill."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from longspan_eval import workers
from longspan_eval.estimate import Pace
from longspan_eval.report import terminal
from longspan_eval.sample import Sample
from longspan_eval.schedule import CellPlan, Request
from longspan_eval.session import bundled

MOST_WORKERS = 8


def measure(plan: CellPlan, pace: Pace, names: Sequence[str], console: Console, *, brief: bool) -> dict[str, Sample]:
    """Measure all of it, in as many processes as there are cores, under tables that fill as it goes.

    Args:
        names: the tables that are shown.
        brief: show the tables at the end alone.

    Returns:
        Samples by key, in the plan's order.
    """
    parts = plan.left({}, rank=lambda cell, part: (cell.measures[0].length, part))
    progress = Progress(
        TextColumn("  {task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("[dim]left[/]"),
        TimeRemainingColumn(),
        console=console,
    )
    left: dict[str, int] = {}
    for request in (request for part in parts for request in part):
        left[_column(plan, request)] = left.get(_column(plan, request), 0) + 1
    bar = progress.add_task("reading", total=sum(pace.work(one.measure.length) for part in parts for one in part))
    samples: dict[str, Sample] = {}

    def table() -> RenderableType:
        figures = plan.figures(samples)
        return terminal.Beside([(name, [pair for pair in figures if pair[0].table == name]) for name in names])

    processes, threads = _crew()
    live_on = Console(quiet=True) if brief else console
    with (
        Live(Group(table(), progress), console=live_on, refresh_per_second=8) as live,
        closing(workers.run(parts, load=bundled, workers=processes, threads=threads)) as answers,
    ):
        for request, sample in answers:
            samples[request.key] = sample
            head, row = _column(plan, request), request.measure.spec.label
            progress.update(bar, advance=pace.work(request.measure.length), description=f"{row} at {head}".ljust(20))
            live.update(Group(table(), progress))
            left[head] -= 1
            if not brief and not console.is_terminal and left[head] == 0:
                console.print(f"  read {head}")  # a log shows no bar
        live.update(table())
    if brief:
        console.print(table())
    failures = {one.error: f"{one.method} at {one.length} tokens" for one in samples.values() if one.error is not None}
    for error, where in failures.items():
        console.print(f"  [magenta]{where}: {error}[/]")
    # As they are asked for, whichever process was done first: two runs of one seed leave the same file.
    return {one.key: samples[one.key] for part in parts for one in part if one.key in samples}


def _column(plan: CellPlan, request: Request) -> str:
    return plan.cells[request.cell].column


def _crew() -> tuple[int, int]:
    """How many processes, of how many threads each: a model this small keeps no more than one core busy."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(cores, MOST_WORKERS)
    return workers, cores // workers
