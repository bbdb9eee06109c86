"""The demonstration: the bundled model reads up to 8 times its window under most of the methods, with a table."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.panel import Panel
from transformers import PreTrainedModel

from longspan import files
from longspan.bundled import card, load_bundled
from longspan.errors import LongspanError
from longspan.methods import METHODS
from longspan_eval import workers
from longspan_eval.cell import Cell
from longspan_eval.estimate import Pace
from longspan_eval.figure import Figure, wilson
from longspan_eval.measure import Measure, TaskPrompt
from longspan_eval.reduce import Reduce, count, perplexity
from longspan_eval.report import charts, terminal
from longspan_eval.report.depths import depth_panels
from longspan_eval.run import measure as run_measure
from longspan_eval.sample import Sample, environment, finite
from longspan_eval.schedule import CellPlan
from longspan_eval.session import bundled
from longspan_eval.spec import STOCK, MethodSpec, parse_specs
from longspan_eval.studies.eval import spread
from longspan_eval.subject import Subject
from longspan_eval.task import Task
from longspan_eval.tasks import TASKS
from longspan_eval.tasks.passkey import scored_passkey

# "full" is stock by another route and "string" is made for use inside the window; neither tells a newcomer anything.
# "infllm" finds as little as StreamingLLM here; --methods takes it, and docs/results.md has it.
LEFT_OUT = ("full", "string", "infllm")
SHOWN_AS = {"longheads": "longheads:score=bounds"}  # the paper's own score finds little on this model
MULTIPLES = (1, 2, 4, 8)
DEPTHS = 5
MOST_WORKERS = 8
FOUND, FACT, SURPRISE = "passkey found", "fact found", "perplexity"
TASK = scored_passkey("prose", 256)  # with the perplexity of so many tokens at the end of the prose
FACTS = TASKS["facts"]


def methods_shown() -> tuple[str, ...]:
    """Stock, and every method that is not left out on purpose."""
    return STOCK, *(SHOWN_AS.get(name, name) for name in METHODS if name not in LEFT_OUT)


@dataclass(frozen=True)
class DemoSettings:
    """The settings.

    Attributes:
        multiples: lengths, in windows of the model.
        methods: ``"stock"``, or names in ``METHODS``, with parameters if wanted (``"longheads:score=bounds"``).
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
        """The methods, in their order."""
        return parse_specs(self.methods)


def depths(prompts: int) -> list[float]:
    """Depths for so many prompts: evenly spread over 0 to 1, at most five different ones, in turn."""
    each = spread(min(prompts, DEPTHS))
    return [each[n % len(each)] for n in range(prompts)]


def facts_asked() -> bool:
    """Whether the model can answer facts in its window, by its card; else beyond it they cannot tell methods apart."""
    figures = card()["tasks"].get(FACTS.name)
    return figures is not None and figures["score"] >= 0.8


def tables() -> dict[str, tuple[Task, Reduce]]:
    """Each table's task and figure. Facts are asked for if the model can answer them."""
    facts = {FACT: (FACTS, count)} if facts_asked() else {}
    return {FOUND: (TASK, count), **facts, SURPRISE: (TASK, perplexity)}


def cells(settings: DemoSettings, window: int) -> list[Cell]:
    """Pass keys found, facts found, and the perplexity of the prompts with pass keys, by method and length."""
    asked = {task.name: task for task, _ in tables().values()}
    prompts = {
        (name, spec, multiple): tuple(
            TaskPrompt(spec, round(multiple * window), settings.seed + n, task=task, depth=depth)
            for n, depth in enumerate(depths(settings.prompts))
        )
        for name, task in asked.items()
        for spec in settings.specs
        for multiple in settings.multiples
    }
    return [
        Cell(spec.label, f"{multiple:g}x", reduce, prompts[task.name, spec, multiple], table=table)
        for table, (task, reduce) in tables().items()
        for spec in settings.specs
        for multiple in settings.multiples
    ]


def run(settings: DemoSettings, out: Path, console: Console, *, brief: bool = False) -> dict[str, Any]:
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
        for task, _ in tables().values():
            task.build(tokenizer, length=min(lengths), seed=settings.seed, depth=0.5)
    except ValueError as error:
        raise LongspanError(str(error)) from error
    aside.print(_introduction(model, settings, window, max(lengths)))
    plan = CellPlan(cells(settings, window), _key)
    samples = measured(plan, Pace(subject), aside)
    figures = plan.figures(samples)
    console.print(terminal.Beside([(name, [pair for pair in figures if pair[0].table == name]) for name in tables()]))
    body: dict[str, Any] = {
        "task": "a passkey hidden in held-out prose; perplexity over the last 256 tokens of the same prose"
        + ("; one of 12 facts in such prose, asked for in plain words" if FACT in tables() else ""),
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
    bar = "#." if console.options.ascii_only else "█░"
    for name, title in ((FOUND, "Pass keys"), (FACT, "Facts")):
        beyond = [
            (cell, figure)
            for cell, figure in plan.figures(samples)
            if cell.table == name and cell.measures[0].length > window
        ]
        if beyond:
            console.print(terminal.totals(beyond, f"{title} beyond the window", bar))
    aside.print(f"\n  [dim]numbers[/]   {json_path}")
    title = f"Passkeys found in prose beyond a window of {window} tokens, {settings.prompts} a length"
    panels = depth_panels(plan, samples, lambda cell: cell.table == FOUND, lambda cell: cell.column)
    words = {"x": "length, in windows of the model", "y": "depth of the passkey", "label": "passkeys found"}
    charts.tiles(panels, title, out / "heatmap.png", across=5, **words)
    aside.print(f"  [dim]heat map[/]  {out / 'heatmap.png'}")
    aside.print(f"  [dim]took[/]      {time.perf_counter() - begun:.0f} seconds\n")
    return body


@dataclass
class _KeptSamples:
    """Keeps samples for as long as the demonstration runs; see ``longspan_eval.run.Kept``."""

    samples: dict[str, Sample] = field(default_factory=dict)

    def append(self, key: str, sample: Sample) -> None:
        self.samples[key] = sample


def measured(plan: CellPlan, pace: Pace, console: Console) -> dict[str, Sample]:
    """Samples by key, in the plan's order, measured in as many processes as there are cores, under a bar."""
    parts = plan.left({}, rank=lambda cell, part: (cell.measures[0].length, part))
    # A model this small keeps no more than one core busy.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count, kept = min(cores, MOST_WORKERS), _KeptSamples()
    answers = partial(workers.run, load=bundled, workers=count, threads=cores // count)
    run_measure(plan, parts, kept, pace, answers, console=console, at_once=count)
    # As they are asked for, whichever process was done first: two runs of one seed leave the same file.
    return {one.key: kept.samples[one.key] for part in parts for one in part if one.key in kept.samples}


def _key(measure: Measure) -> str:
    return f"{measure.name} {measure.spec.label} {measure.length} {measure.seed}"


def _cells_json(plan: CellPlan, samples: Mapping[str, Sample]) -> list[dict[str, Any]]:
    figures = {(cell.table, cell.row, cell.column): figure for cell, figure in plan.figures(samples)}
    body = []
    for n, cell in enumerate(plan.cells):
        if cell.table != FOUND:
            continue
        place = cell.row, cell.column
        fact = figures.get((FACT, *place))
        body.append(
            {
                "method": cell.row,
                "length": cell.measures[0].length,
                **_found_json(figures[FOUND, *place]),
                "perplexity": figures[SURPRISE, *place].value,
                "seconds": math.fsum(one.seconds for one in plan.measured(n, samples)),
                "error": figures[FOUND, *place].reason,
                "facts": None if fact is None else _found_json(fact),
            }
        )
    return body


def _found_json(figure: Figure) -> dict[str, Any]:
    right = round(figure.value * figure.n) if figure.n else 0
    return {"n": figure.n, "found": right, "rate": figure.value, "interval": figure.interval}


def _introduction(model: PreTrainedModel, settings: DemoSettings, window: int, longest: int) -> RenderableType:
    low, high = (wilson(found, settings.prompts) for found in (0, settings.prompts))
    n = settings.prompts
    return Panel(
        f"A Llama of [bold]{model.num_parameters() / 1e6:.1f} million[/] parameters, never trained on more than "
        f"[bold]{window} tokens[/] (1x), reads up to [bold]{longest:,}[/].\n"
        "A five-digit pass key is hidden in prose that it has never seen, and asked for at the end.\n"
        f"{_facts_note()}\n"
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


def _facts_note() -> str:
    if FACT not in tables():
        return ""
    return 'Then one of twelve facts about people, in plain words: "Which town does Ada live in?"\n'


def _parameters_note(settings: DemoSettings) -> str:
    """The rows with other parameters than their defaults."""
    given = [spec for spec in settings.methods if ":" in spec]
    return f"[dim]not at their defaults: {', '.join(given)}[/]\n" if given else ""
