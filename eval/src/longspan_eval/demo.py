"""The demonstration: the bundled model reads up to 16 times its window under every method, and you watch."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text
from transformers import PreTrainedModel

from longspan import files
from longspan.bundled import load_bundled
from longspan.errors import LongspanError
from longspan.hf import extend
from longspan.methods import METHODS
from longspan_eval import report, results
from longspan_eval.generate import stream
from longspan_eval.passkey import ANSWER_ROOM, build
from longspan_eval.plan import Ask
from longspan_eval.results import Sample
from longspan_eval.rows import STOCK, Row, parse_rows
from longspan_eval.scored_passkey import scored_passkey
from longspan_eval.task import Example
from longspan_eval.workers import run as ask_all

# "full" is stock by another route and "string" is made for use inside the window; neither tells a newcomer anything.
# "infllm" finds as little as StreamingLLM here; --methods takes it, and the quality table has it.
LEFT_OUT = ("full", "string", "infllm")
SHOWN_AS = {"longheads": "longheads:score=bounds"}  # the paper's own score finds little on this model
MOST_WORKERS = 8
MULTIPLES = (1, 2, 4, 8, 16)
DEPTHS = 5
BESIDE = "dca"  # typed out beside stock at the end, at this many windows:
BESIDE_MULTIPLE = 4
ANSWER_TOKENS = 12
SCORED = 256  # tokens at the end of the prose whose perplexity is taken


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
        parse_rows(self.methods)

    @property
    def rows(self) -> list[Row]:
        """What is measured, in its order."""
        return parse_rows(self.methods)

    @property
    def labels(self) -> list[str]:
        return [row.label for row in self.rows]


def depths(prompts: int) -> list[float]:
    """Depths for so many prompts: evenly spread over 0 to 1, at most five different ones, in turn."""
    steps = min(prompts, DEPTHS)
    return [0.5] if steps == 1 else [n % steps / (steps - 1) for n in range(prompts)]


def build_prompt(tokenizer: Any, length: int, depth: float, seed: int) -> Example:
    """A passkey in held-out prose; prompt and answer take ``length`` tokens."""
    return build(
        tokenizer, length=length, seed=seed, depth=depth, filler="prose", answer_room=ANSWER_ROOM, targets=SCORED
    )


def plan(settings: Settings, lengths: Sequence[int]) -> list[list[Ask]]:
    """What is asked, in lists for one method at one length, shortest first."""
    task = scored_passkey("prose", SCORED)
    return [
        [
            Ask(row, task, length, settings.seed + n, depth, f"{row.label} {length} {n}", "prose")
            for n, depth in enumerate(depths(settings.prompts))
        ]
        for length in lengths
        for row in settings.rows
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
    window = model.config.max_position_embeddings
    lengths = [round(multiple * window) for multiple in settings.multiples]
    heads = [f"{multiple:g}x" for multiple in settings.multiples]
    try:
        build_prompt(tokenizer, min(lengths), 0.5, settings.seed)
    except ValueError as error:
        raise LongspanError(str(error)) from error
    aside.print(_introduction(model, settings, window, max(lengths)))
    samples = _measure(plan(settings, lengths), lengths, settings, heads, console, brief)
    cells = results.cells(samples)
    if not brief:
        _answer_beside(model, tokenizer, settings.seed, console)
    head = {
        "task": "a passkey hidden in held-out prose; perplexity over the last 256 tokens of the same prose",
        "model": {
            "name": "longspan bundled",
            "sha256": results.weights_hash(model),
            "parameters": model.num_parameters(),
            "window": window,
        },
        "seed": settings.seed,
        "prompts_per_cell": settings.prompts,
        "lengths": lengths,
        "methods": {row.label: {str(n): row.parameters(window, n) for n in lengths} for row in settings.rows},
    }
    body = results.write(json_path, head, samples)
    bar = "#." if console.options.ascii_only else "█░"
    console.print(_verdict(cells, settings.labels, [n for n in lengths if n > window], bar))
    aside.print(f"\n  [dim]numbers[/]   {json_path}")
    if find_spec("matplotlib") is None:
        aside.print("  [yellow]no heat map: matplotlib is missing (pip install 'longspan\\[plot]')[/]")
    else:
        title = f"Passkeys found in prose beyond a window of {window} tokens, {settings.prompts} a length"
        report.heat_map(samples, settings.labels, lengths, heads, title, out / "heatmap.png")
        aside.print(f"  [dim]heat map[/]  {out / 'heatmap.png'}")
    aside.print(f"  [dim]took[/]      {time.perf_counter() - begun:.0f} seconds\n")
    return body


def _introduction(model: PreTrainedModel, settings: Settings, window: int, longest: int) -> RenderableType:
    low, high = (results.wilson(found, settings.prompts) for found in (0, settings.prompts))
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


def _measure(
    parts: list[list[Ask]],
    lengths: Sequence[int],
    settings: Settings,
    heads: Sequence[str],
    console: Console,
    brief: bool,
) -> list[Sample]:
    """Ask all of it, in as many processes as there are cores, under a table that fills as it goes."""
    progress = Progress(
        TextColumn("  {task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("[dim]left[/]"),
        TimeRemainingColumn(),
        console=console,
    )
    bar = progress.add_task("reading", total=sum(_work(ask.length) for part in parts for ask in part))
    found: dict[str, Sample] = {}
    keys = [ask.key for part in parts for ask in part]

    def page() -> RenderableType:
        cells = results.cells([found[key] for key in keys if key in found])
        whole = {key: cell for key, cell in cells.items() if cell.error or cell.n == settings.prompts}
        good = [cell.perplexity for cell in whole.values() if cell.length == min(lengths) and cell.error is None]
        return report.table(whole, settings.labels, list(lengths), heads, baseline=min(good, default=math.nan))

    workers, threads = _crew()
    left = dict.fromkeys(lengths, len(keys) // len(lengths))
    live_on = Console(quiet=True) if brief else console
    with (
        Live(Group(page(), progress), console=live_on, refresh_per_second=8) as live,
        closing(ask_all(parts, load_bundled, workers, threads=threads)) as answers,
    ):
        for ask, sample in answers:
            found[ask.key] = sample
            head = heads[list(lengths).index(ask.length)]
            progress.update(bar, advance=_work(ask.length), description=f"{ask.row.label} at {head}".ljust(20))
            live.update(Group(page(), progress))
            left[ask.length] -= 1
            if not brief and not console.is_terminal and left[ask.length] == 0:
                console.print(f"  read {head}")  # a log shows no bar
        live.update(page())
    if brief:
        console.print(page())
    samples = [found[key] for key in keys if key in found]  # after an error no more of its cell is asked
    failures = {s.error: f"{s.method} at {s.length} tokens" for s in samples if s.error is not None}
    for error, where in failures.items():
        console.print(f"  [magenta]{where}: {error}[/]")
    return samples


def _crew() -> tuple[int, int]:
    """How many processes, of how many threads each: a model this small keeps no more than one core busy."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(cores, MOST_WORKERS)
    return workers, cores // workers


def _work(length: int) -> float:
    """About how much work a prompt is: a linear part and attention's, equal at 4096 tokens for a model this small."""
    return length * (1 + length / 4096)


def _answer_beside(model: PreTrainedModel, tokenizer: Any, seed: int, console: Console) -> None:
    """One answer token by token, the stock model's beside the extended one's."""
    window = model.config.max_position_embeddings
    prompt = build_prompt(tokenizer, BESIDE_MULTIPLE * window, 0.5, seed)
    other, _ = load_bundled()
    extend(other, BESIDE)
    sides = {STOCK: stream(model, tokenizer, prompt.input_ids, ANSWER_TOKENS)}
    sides[BESIDE] = stream(other, tokenizer, prompt.input_ids, ANSWER_TOKENS)
    said = dict.fromkeys(sides, "")
    console.print(
        f"\n  [bold]One prompt of {len(prompt.input_ids):,} tokens[/], half way in the pass key "
        f"[bold cyan]{prompt.answer}[/]. Both type:\n"
    )
    with Live(_panels(said, prompt.answer), console=console, refresh_per_second=20) as live:
        typing = dict(sides)
        while typing:
            for name in list(typing):
                text = next(typing[name], None)
                if text is None or "\n" in text.strip():
                    del typing[name]
                else:
                    said[name] = text
            live.update(_panels(said, prompt.answer))
            if console.is_terminal:
                time.sleep(0.08)  # a model this small types faster than one can follow


def _panels(said: dict[str, str], answer: str) -> RenderableType:
    panels = []
    for name, text in said.items():
        right = answer in text
        typed = Text("What is the pass key?\nThe pass key is", style="dim")
        typed.append(text.replace("\n", " "), style="bold green" if right else "bold red")
        border = "green" if right else "red"
        panels.append(Panel(typed, title=name, title_align="left", border_style=border, width=38, height=5))
    return Columns(panels, padding=(0, 1))


def _verdict(cells: report.Cells, methods: Sequence[str], beyond: Sequence[int], bar: str = "█░") -> Text:
    """How many passkeys were found beyond the window, by stock and by the methods, best first."""
    totals = []
    for name in methods:
        row = [cells[name, length] for length in beyond]
        if row and all(cell.error is None for cell in row):
            totals.append((sum(cell.found for cell in row), sum(cell.n for cell in row), name))
    text = Text("\n  Beyond the window", style="bold") if totals else Text()
    width = max((len(name) for _, _, name in totals), default=0) + 1
    for found, n, name in sorted(totals, key=lambda total: -total[0]):
        text.append(f"\n  {name:<{width}}", style="bold" if name == STOCK else "")
        filled = round(24 * found / n)
        text.append(bar[0] * filled, style="green")
        text.append(bar[1] * (24 - filled), style="dim")
        low, high = results.wilson(found, n)
        text.append(f" {found:>3} of {n} found", style="")
        text.append(f"  ({low:.0%}-{high:.0%})", style="dim")
    return text
