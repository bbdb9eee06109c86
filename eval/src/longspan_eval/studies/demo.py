"""The demonstration: the bundled model reads up to 16 times its window under every method, and you watch."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import PreTrainedModel

from longspan import files
from longspan.bundled import load_bundled
from longspan.errors import LongspanError
from longspan.methods import METHODS
from longspan_eval import workers
from longspan_eval.cell import Cell
from longspan_eval.estimate import Pace
from longspan_eval.figure import wilson
from longspan_eval.measure import Measure, Prompt
from longspan_eval.reduce import count, perplexity
from longspan_eval.report import charts, terminal
from longspan_eval.report.markdown import Figures
from longspan_eval.sample import Sample, environment, finite
from longspan_eval.schedule import Plan, Request
from longspan_eval.session import bundled
from longspan_eval.spec import STOCK, MethodSpec, parse_specs
from longspan_eval.studies.demo_answer import answer_beside
from longspan_eval.subject import Subject
from longspan_eval.tasks.passkey import scored_passkey

# "full" is stock by another route and "string" is made for use inside the window; neither tells a newcomer anything.
# "infllm" finds as little as StreamingLLM here; --methods takes it, and the quality table has it.
LEFT_OUT = ("full", "string", "infllm")
SHOWN_AS = {"longheads": "longheads:score=bounds"}  # the paper's own score finds little on this model
MOST_WORKERS = 8
MULTIPLES = (1, 2, 4, 8, 16)
DEPTHS = 5
BESIDE = "dca"  # typed out beside stock at the end, at this many windows:
BESIDE_MULTIPLE = 4
FOUND, SURPRISE = "passkey found", "perplexity"
TASK = scored_passkey("prose", 256)  # with the perplexity of so many tokens at the end of the prose


def methods_shown() -> tuple[str, ...]:
    """Stock, and every method that is not left out on purpose."""
    return STOCK, *(SHOWN_AS.get(name, name) for name in METHODS if name not in LEFT_OUT)


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        prompts: prompts a cell.
        multiples: lengths, in windows of the model.
        methods: ``"stock"``, or names in ``METHODS``, with parameters if wanted (``"longheads:score=bounds"``).
        seed: decides the prose and the passkeys.
    """

    prompts: int = 5
    multiples: tuple[float, ...] = MULTIPLES
    methods: tuple[str, ...] = methods_shown()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.prompts < 1:
            raise LongspanError(f"prompts must be at least 1, not {self.prompts}")
        if not self.multiples or not self.methods:
            raise LongspanError("give at least one length and one method")
        if len(set(self.multiples)) < len(self.multiples):
            raise LongspanError("a length is listed twice")
        parse_specs(self.methods)

    @property
    def specs(self) -> list[MethodSpec]:
        """What is measured, in its order."""
        return parse_specs(self.methods)


def depths(prompts: int) -> list[float]:
    """Depths for so many prompts: evenly spread over 0 to 1, at most five different ones, in turn."""
    steps = min(prompts, DEPTHS)
    return [0.5] if steps == 1 else [n % steps / (steps - 1) for n in range(prompts)]


def cells(settings: Settings, window: int) -> list[Cell]:
    """Pass keys found and perplexity, by method and length; both of the same prompts."""
    prompts = {
        (spec, multiple): tuple(
            Prompt(spec, round(multiple * window), settings.seed + n, task=TASK, depth=depth)
            for n, depth in enumerate(depths(settings.prompts))
        )
        for spec in settings.specs
        for multiple in settings.multiples
    }
    return [
        Cell(spec.label, f"{multiple:g}x", reduce, measures, table=table)
        for table, reduce in ((FOUND, count), (SURPRISE, perplexity))
        for (spec, multiple), measures in prompts.items()
    ]


def run(settings: Settings, out: Path, console: Console, *, brief: bool = False) -> dict[str, Any]:
    """Measure, show, and leave ``results.json`` and ``heatmap.png`` in ``out``.

    Args:
        brief: show the table and what follows from it, and nothing else.

    Returns:
        What ``results.json`` says.
    """
    aside = Console(quiet=True) if brief else console
    begun = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    json_path = out / "results.json"
    files.check(json_path)  # better to hear now than after the measurement that nothing can be written there
    model, tokenizer = load_bundled()
    subject = Subject.of(model)
    window = subject.window
    lengths = [round(multiple * window) for multiple in settings.multiples]
    try:
        TASK.build(tokenizer, length=min(lengths), seed=settings.seed, depth=0.5)
    except ValueError as error:
        raise LongspanError(str(error)) from error
    aside.print(_introduction(model, settings, window, max(lengths)))
    plan = Plan(cells(settings, window), _key)
    samples = _measure(plan, Pace(subject), console, brief)
    if not brief:
        prompt = TASK.build(tokenizer, length=BESIDE_MULTIPLE * window, seed=settings.seed, depth=0.5)
        answer_beside(model, tokenizer, prompt, BESIDE, console)
    body = {
        "task": "a passkey hidden in held-out prose; perplexity over the last 256 tokens of the same prose",
        "model": {
            "name": "longspan bundled",
            "sha256": subject.sha256,
            "parameters": subject.parameters,
            "window": window,
        },
        "seed": settings.seed,
        "prompts_per_cell": settings.prompts,
        "lengths": lengths,
        "methods": {spec.label: {str(n): spec.parameters(window, n) for n in lengths} for spec in settings.specs},
        "environment": environment(),
        "cells": _cells_json(plan, samples),
        "samples": [asdict(sample) for sample in samples.values()],
    }
    body = finite(body)
    files.write(json_path, json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    beyond = [
        (cell, figure)
        for cell, figure in plan.figures(samples)
        if cell.table == FOUND and cell.measures[0].length > window
    ]
    console.print(terminal.totals(beyond, "Beyond the window", "#." if console.options.ascii_only else "█░"))
    aside.print(f"\n  [dim]numbers[/]   {json_path}")
    title = f"Passkeys found in prose beyond a window of {window} tokens, {settings.prompts} a length"
    _heat_map(plan, samples, title, out / "heatmap.png")
    aside.print(f"  [dim]heat map[/]  {out / 'heatmap.png'}")
    aside.print(f"  [dim]took[/]      {time.perf_counter() - begun:.0f} seconds\n")
    return body


def _key(measure: Measure) -> str:
    return f"{measure.spec.label} {measure.length} {measure.seed}"


def _cells_json(plan: Plan, samples: Mapping[str, Sample]) -> list[dict[str, Any]]:
    figures, half = plan.figures(samples), len(plan.cells) // 2
    body = []
    for n, ((cell, right), (_, surprise)) in enumerate(zip(figures[:half], figures[half:], strict=True)):
        body.append(
            {
                "method": cell.row,
                "length": cell.measures[0].length,
                "n": right.n,
                "found": round(right.value * right.n) if right.n else 0,
                "rate": right.value,
                "interval": right.interval,
                "perplexity": surprise.value,
                "seconds": math.fsum(one.seconds for one in plan.measured(n, samples)),
                "error": right.reason,
            }
        )
    return body


def _heat_map(plan: Plan, samples: Mapping[str, Sample], title: str, path: Path) -> None:
    """A PNG of passkeys found by length and depth, a panel for each method."""
    panels: dict[str, list[list[Sample]]] = {}
    heads = list(dict.fromkeys(cell.column for cell in plan.cells))
    for n, cell in enumerate(plan.cells):
        if cell.table == FOUND:
            panels.setdefault(cell.row, []).append(plan.measured(n, samples))
    where = sorted({sample.depth for sample in samples.values() if sample.depth is not None})

    def share(column: list[Sample], depth: float) -> float:
        return count([one for one in column if one.depth == depth and one.error is None]).value

    charts.tiles(
        [
            charts.Panel(row, [f"{d:.0%}" for d in where], heads, [[share(one, d) for one in columns] for d in where])
            for row, columns in panels.items()
        ],
        title,
        path,
        across=5,
        x="length, in windows of the model",
        y="depth of the passkey",
        label="passkeys found",
    )


def _introduction(model: PreTrainedModel, settings: Settings, window: int, longest: int) -> RenderableType:
    low, high = (wilson(found, settings.prompts) for found in (0, settings.prompts))
    n = settings.prompts
    return Panel(
        f"A Llama of [bold]{model.num_parameters() / 1e6:.1f} million[/] parameters, never trained on more than "
        f"[bold]{window} tokens[/] (1x), reads up to [bold]{longest:,}[/].\n"
        "A five-digit pass key is hidden in prose that it has never seen, and asked for at the end.\n\n"
        f"[bold]{STOCK}[/] is plain transformers. Every other row is the same weights after\n"
        '[cyan]longspan.extend(model, "NAME")[/]: no training, one line.\n\n'
        f"{_parameters_note(settings)}"
        f"[dim]{n} prompt{'s' if n > 1 else ''} a cell, greedy, exact match, seed {settings.seed}\n"
        f"95% interval of {n}/{n}: {high[0]:.0%}-100%; of 0/{n}: 0%-{low[1]:.0%}[/]",
        title="[bold]longspan demo[/]",
        title_align="left",
        border_style="cyan",
        padding=(1, 2),
    )


def _parameters_note(settings: Settings) -> str:
    """Which rows run with other parameters than their defaults."""
    given = [spec for spec in settings.methods if ":" in spec]
    return f"[dim]not at their defaults: {', '.join(given)}[/]\n" if given else ""


def _measure(plan: Plan, pace: Pace, console: Console, brief: bool) -> dict[str, Sample]:
    """Measure all of it, in as many processes as there are cores, under a table that fills as it goes."""
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
        halves: list[Figures] = [[pair for pair in figures if pair[0].table == name] for name in (FOUND, SURPRISE)]
        return terminal.Halves(halves[0], halves[1], (FOUND, SURPRISE))

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
    return samples


def _column(plan: Plan, request: Request) -> str:
    return plan.cells[request.cell].column


def _crew() -> tuple[int, int]:
    """How many processes, of how many threads each: a model this small keeps no more than one core busy."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(cores, MOST_WORKERS)
    return workers, cores // workers
