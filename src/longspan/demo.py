"""The demonstration: the bundled model reads up to 16 times its window under every method, and you watch."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
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

from longspan.bundled import load_bundled
from longspan.errors import LongspanError
from longspan.evaluation import report, results
from longspan.evaluation.generate import stream
from longspan.evaluation.passkey import ANSWER_ROOM, build
from longspan.evaluation.results import Sample
from longspan.evaluation.runner import STOCK, method_for, sweep
from longspan.evaluation.scored_passkey import scored_passkey
from longspan.evaluation.task import Example
from longspan.hf import extend
from longspan.methods import METHODS

# "full" is stock by another route and "string" is made for use inside the window; neither tells a newcomer anything.
# "infllm" and "longheads", under the score of its paper, find as little as StreamingLLM here and take the demo beyond
# three minutes; --methods takes them, and the quality table has them.
LEFT_OUT = ("full", "string", "infllm", "longheads")
MULTIPLES = (1, 2, 4, 8, 16)
DEPTHS = 5
BESIDE = "dca"  # typed out beside stock at the end, at this many windows:
BESIDE_MULTIPLE = 4
ANSWER_TOKENS = 12
SCORED = 256  # tokens at the end of the prose whose perplexity is taken


def methods_shown() -> tuple[str, ...]:
    """Stock, and every method that is not left out on purpose."""
    return STOCK, *(name for name in METHODS if name not in LEFT_OUT)


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        prompts: prompts a cell.
        multiples: lengths, in windows of the model.
        methods: names in ``METHODS``, or ``"stock"``.
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
        if len(set(self.methods)) < len(self.methods) or len(set(self.multiples)) < len(self.multiples):
            raise LongspanError("a length or a method is listed twice")
        for name in self.methods:
            if name != STOCK and name not in METHODS:
                raise LongspanError(f"no method is called {name!r}; there are {STOCK}, {', '.join(METHODS)}")


def depths(prompts: int) -> list[float]:
    """Depths for so many prompts: evenly spread over 0 to 1, at most five different ones, in turn."""
    steps = min(prompts, DEPTHS)
    return [0.5] if steps == 1 else [n % steps / (steps - 1) for n in range(prompts)]


def build_prompt(tokenizer: Any, length: int, depth: float, seed: int) -> Example:
    """A passkey in held-out prose; prompt and answer take ``length`` tokens."""
    return build(
        tokenizer, length=length, seed=seed, depth=depth, filler="prose", answer_room=ANSWER_ROOM, targets=SCORED
    )


def build_prompts(tokenizer: Any, settings: Settings, length: int) -> list[Example]:
    """The prompts of one length."""
    try:
        return [
            build_prompt(tokenizer, length, depth, settings.seed + n)
            for n, depth in enumerate(depths(settings.prompts))
        ]
    except ValueError as error:
        raise LongspanError(str(error)) from error


def run(settings: Settings, out: Path, console: Console) -> None:
    """Measure, show, and leave ``results.json`` and ``heatmap.png`` in ``out``."""
    begun = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    json_path = out / "results.json"
    json_path.touch()  # better to hear now than after the measurement that nothing can be written there
    model, tokenizer = load_bundled()
    window = model.config.max_position_embeddings
    lengths = [round(multiple * window) for multiple in settings.multiples]
    heads = [f"{multiple:g}x" for multiple in settings.multiples]
    prompts = {length: build_prompts(tokenizer, settings, length) for length in lengths}
    console.print(_introduction(model, settings, window, max(lengths)))
    samples = _measure(model, tokenizer, prompts, settings, heads, console)
    cells = results.cells(samples)
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
        "methods": {name: _parameters(name, lengths, window) for name in settings.methods},
    }
    results.write(json_path, head, samples)
    console.print(_verdict(cells, settings.methods, [n for n in lengths if n > window]))
    console.print(f"\n  [dim]numbers[/]   {json_path}")
    if find_spec("matplotlib") is None:
        console.print("  [yellow]no heat map: matplotlib is missing (pip install 'longspan\\[plot]')[/]")
    else:
        title = f"Passkeys found in prose beyond a window of {window} tokens, {settings.prompts} a length"
        report.heat_map(samples, settings.methods, lengths, heads, title, out / "heatmap.png")
        console.print(f"  [dim]heat map[/]  {out / 'heatmap.png'}")
    console.print(f"  [dim]took[/]      {time.perf_counter() - begun:.0f} seconds\n")


def _introduction(model: PreTrainedModel, settings: Settings, window: int, longest: int) -> RenderableType:
    low, high = (results.wilson(found, settings.prompts) for found in (0, settings.prompts))
    n = settings.prompts
    return Panel(
        f"A Llama of [bold]{model.num_parameters() / 1e6:.1f} million[/] parameters, never trained on more than "
        f"[bold]{window} tokens[/] (1x), reads up to [bold]{longest:,}[/].\n"
        "A five-digit pass key is hidden in prose that it has never seen, and asked for at the end.\n\n"
        f"[bold]{STOCK}[/] is plain transformers. Every other row is the same weights after\n"
        '[cyan]longspan.extend(model, "…")[/]: no training, one line.\n\n'
        f"[dim]{n} prompt{'s' if n > 1 else ''} a cell, greedy, exact match, seed {settings.seed}\n"
        f"95% interval of {n}/{n}: {high[0]:.0%}-100%; of 0/{n}: 0%-{low[1]:.0%}[/]",
        title="[bold]longspan demo[/]",
        title_align="left",
        border_style="cyan",
        padding=(1, 2),
    )


def _measure(
    model: PreTrainedModel,
    tokenizer: Any,
    prompts: dict[int, list[Example]],
    settings: Settings,
    heads: Sequence[str],
    console: Console,
) -> list[Sample]:
    """Run the sweep under a table that fills as it goes."""
    progress = Progress(
        TextColumn("  {task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("[dim]left[/]"),
        TimeRemainingColumn(),
        console=console,
    )
    total = sum(_work(length) * len(group) for length, group in prompts.items()) * len(settings.methods)
    bar = progress.add_task("reading", total=total)
    samples: list[Sample] = []

    def page() -> RenderableType:
        cells = results.cells(samples)
        whole = {key: cell for key, cell in cells.items() if cell.error or cell.n == settings.prompts}
        good = [cell.perplexity for cell in whole.values() if cell.length == min(prompts) and cell.error is None]
        return report.table(whole, settings.methods, list(prompts), heads, baseline=min(good, default=math.nan))

    with Live(Group(page(), progress), console=console, refresh_per_second=8) as live:
        for sample in sweep(model, tokenizer, prompts, settings.methods, scored_passkey("prose", SCORED), "prose"):
            samples.append(sample)
            head = heads[list(prompts).index(sample.length)]
            progress.update(bar, advance=_work(sample.length), description=f"{sample.method} at {head}".ljust(20))
            live.update(Group(page(), progress))
            if not console.is_terminal and len(samples) % (len(settings.methods) * settings.prompts) == 0:
                console.print(f"  read {head}")  # a log shows no bar
        live.update(page())
    failures = {s.error: f"{s.method} at {s.length} tokens" for s in samples if s.error is not None}
    for error, where in failures.items():
        console.print(f"  [magenta]{where}: {error}[/]")
    return samples


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


def _verdict(cells: report.Cells, methods: Sequence[str], beyond: Sequence[int]) -> Text:
    """How many passkeys were found beyond the window, by stock and by the methods, best first."""
    totals = []
    for name in methods:
        row = [cells[name, length] for length in beyond]
        if row and all(cell.error is None for cell in row):
            totals.append((sum(cell.found for cell in row), sum(cell.n for cell in row), name))
    text = Text("\n  Beyond the window", style="bold") if totals else Text()
    for found, n, name in sorted(totals, key=lambda total: -total[0]):
        text.append(f"\n  {name:<14}", style="bold" if name == STOCK else "")
        filled = round(24 * found / n)
        text.append("█" * filled, style="green")
        text.append("░" * (24 - filled), style="dim")
        low, high = results.wilson(found, n)
        text.append(f" {found:>3} of {n} found", style="")
        text.append(f"  ({low:.0%}-{high:.0%})", style="dim")
    return text


def _parameters(name: str, lengths: Sequence[int], window: int) -> dict[str, Any]:
    """Every parameter of a method at each length, for the JSON."""
    shown: dict[str, Any] = {}
    for length in lengths:
        try:
            method = method_for(name, length)
            parameters = {} if method is None else method.resolve(window).parameters()
            shown[str(length)] = {
                key: value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)
                for key, value in parameters.items()
            }
        except ValueError as error:
            shown[str(length)] = {"error": str(error)}
    return shown
