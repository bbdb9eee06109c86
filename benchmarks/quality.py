"""Passkeys over noise and over prose, and perplexity, at 1 to 64 windows of the bundled model: every method, one table.

    python benchmarks/quality.py                    # the table; hours on two cores
    python benchmarks/quality.py --grid             # selections against positions, at 8 and 16 windows
    python benchmarks/quality.py --dry-run          # what is left to do, and about how long that takes
    python benchmarks/quality.py --table-only       # the table from what has been measured so far

Every sample is on disk (OUT/samples.jsonl) as soon as it is there, so the run may be stopped or killed at any time; the
same command takes it up again. The samples that say most come first, and the table can be written at any moment. A
sample is known by task, length, filler, seed, depth, the method with all its parameters and the SHA-256 of the weights:
change one of them and it is measured anew. Code is not among them: after mending a method, give ``--forget ROW``.

Rows are written as NAME or NAME:key=value,key=value, with the names and parameters of ``longspan methods``; ``angles=``
puts scaled angles under a method, and ``calibration=FILE`` (or ``bundled``) gives it a calibration.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from longspan.bundled import load_bundled
from longspan.errors import LongspanError
from longspan.evaluation import passkey, tables
from longspan.evaluation.estimate import Pace, duration
from longspan.evaluation.filler import FILLERS
from longspan.evaluation.journal import Journal, read_samples
from longspan.evaluation.plan import Ask, Cell, schedule
from longspan.evaluation.results import Sample, environment, finite
from longspan.evaluation.rows import STOCK, Row, parse_rows
from longspan.evaluation.scored_passkey import DEPTHS, TARGETS, plan_cell
from longspan.evaluation.subject import Subject
from longspan.evaluation.summary import Summary, summarise
from longspan.evaluation.workers import run
from longspan.methods import METHODS

OUT = Path(__file__).parent / "results" / "quality"
MULTIPLES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
SELECTING = ("longheads", "esa")  # the methods that this table is about
FEATURED = ("longheads", "longheads:score=bounds", "esa")  # the paper's own, and the best settings: the most prompts
LEFT_OUT = ("full",)  # stock by another route, to the digit

# Rows beside every method with its defaults.
VARIANTS: tuple[str, ...] = (
    "longheads:share=head",
    "longheads:score=mean",
    "longheads:score=submeans",
    "longheads:score=bounds",
    "longheads:score=token_max",
    "longheads:score=token_max,share=head",
    "longheads:score=token_max,calibration=bundled",
    "esa:share=group",
    "esa:calibration=bundled",
)
# Selections against positions, at as many keys read for a token and key head: 96 or 264 that are kept anyway, the rest
# chosen, once for all who share and three times as few where each of a key head's three query heads chooses for itself.
GRID: tuple[str, ...] = tuple(
    f"{selection},share={share},remap={remap}"
    for remap in ("slots", "far", "dca")
    for selection, share in (
        ("longheads:score=bounds,num_chunks=13", "layer"),
        ("longheads:score=bounds,num_chunks=13", "group"),
        ("longheads:score=bounds,num_chunks=6", "head"),
        ("esa:top_k=152", "layer"),
        ("esa:top_k=152", "group"),
        ("esa:top_k=51", "head"),
    )
)
GRID_MULTIPLES, GRID_PROMPTS = (8.0, 16.0), 50


def default_rows() -> list[str]:
    """Stock, every method with its defaults, and the variants."""
    return [STOCK, *(name for name in METHODS if name not in LEFT_OUT), *VARIANTS]


def prompts_for(row: Row, multiple: float) -> int:
    """How many prompts a cell gets."""
    if row.label in FEATURED:
        return 200 if multiple <= 16 else 100
    if row.name in SELECTING:
        return 50 if multiple <= 16 else 10
    if row.name == "dca" and multiple == 4:
        return 200
    return 50 if multiple <= 8 else 10


def rank(cell: Cell, part: int) -> tuple[float, ...]:
    """The lowest is asked first: the window, what bars hang on, all else to 16x; what takes longest comes last."""
    name, multiple = cell.row.name, cell.multiple
    if name == STOCK and multiple == 1:
        return 0.0, multiple
    far = multiple > 16
    if far and cell.row.label not in FEATURED:
        return 4.0, multiple
    bar = (cell.row.label in FEATURED and multiple in (16, 64)) or (name == "dca" and multiple == 4)
    return 1.0 + part, 0 if bar else 2 if far else 1, multiple


@dataclass(frozen=True)
class Bar:
    """What the best row of a method has to reach at a length: a share of passkeys, or a ratio of perplexities."""

    method: str
    multiple: float
    filler: str
    found: float | None = None
    ratio: float | None = None


BARS = (
    *(
        bar
        for method in SELECTING
        for bar in (
            Bar(method, 16, "noise", found=0.95),
            Bar(method, 16, "prose", found=0.90),
            Bar(method, 16, "noise", ratio=1.03),
            Bar(method, 16, "prose", ratio=1.03),
        )
    ),
    Bar("longheads", 64, "noise", found=0.80),
    Bar("longheads", 64, "prose", found=0.80),
    Bar("dca", 4, "noise", found=0.90),
    Bar("dca", 4, "prose", found=0.80),
)


class Quality:
    """The table: its cells, their baselines, and what has been measured of them."""

    def __init__(self, args: argparse.Namespace, subject: Subject) -> None:
        self.rows = parse_rows(args.rows or (list(GRID) if args.grid else default_rows()))
        self.multiples: tuple[float, ...] = args.lengths
        self.fillers: tuple[str, ...] = args.fillers
        self.subject = subject
        self.title = "grid" if args.grid else "quality"
        self.cells = [
            plan_cell(subject, row, multiple, filler, _prompts(args, row, multiple), seed=args.seed)
            for row in self.rows
            for multiple in self.multiples
            for filler in self.fillers
        ]
        most = max(len(cell.asks) for cell in self.cells)
        stock = Row(STOCK, None)
        # The in-window prompt of every seed, its passkey before all of the text: what perplexity is measured against.
        self.baselines = {
            filler: plan_cell(subject, stock, 1, filler, most, seed=args.seed, depth=0.0) for filler in self.fillers
        }

    @property
    def every_cell(self) -> list[Cell]:
        return [*self.baselines.values(), *self.cells]

    def left(self, samples: dict[str, Sample], retry_errors: bool) -> list[list[Ask]]:
        """What is still to ask. A cell with an error is done, unless errors are to be tried again."""

        def done(cell: Cell) -> list[Ask]:
            have = [ask for ask in cell.asks if ask.key in samples]
            failed = [ask for ask in have if samples[ask.key].error is not None]
            if failed and not retry_errors:
                return list(cell.asks)
            return [ask for ask in have if ask not in failed]

        return schedule(self.every_cell, done, rank)

    def summaries(self, samples: dict[str, Sample]) -> dict[tuple[str, float, str], Summary]:
        return {
            (cell.row.label, cell.multiple, cell.filler): summarise(cell, samples, self.baselines[cell.filler])
            for cell in self.cells
        }


def _prompts(args: argparse.Namespace, row: Row, multiple: float) -> int:
    if args.prompts is not None:
        return int(args.prompts)
    return GRID_PROMPTS if args.grid else prompts_for(row, multiple)


def measure(table: Quality, journal: Journal, args: argparse.Namespace, console: Console) -> None:
    """Ask what is left, keeping every sample at once."""
    parts = table.left(journal.samples, args.retry_errors)
    seconds = _seconds(table, journal.samples)
    expected = {ask.key: seconds(ask) for part in parts for ask in part}
    console.print(f"{len(expected):,} prompts to ask, {duration(sum(expected.values()) / args.workers)} at least")
    columns = (BarColumn(bar_width=30), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn())
    deadline = None if args.budget_minutes is None else time.monotonic() + 60 * args.budget_minutes
    with (
        Progress(TextColumn("{task.description}"), *columns, TimeRemainingColumn(), console=console) as progress,
        closing(run(parts, load_bundled, args.workers, deadline=deadline)) as answers,
    ):
        bar = progress.add_task("reading", total=sum(expected.values()))
        for n, (ask, sample) in enumerate(answers, 1):
            journal.append(ask.key, sample)
            where = f"{ask.row.label} at {ask.length} over {ask.filler}"
            progress.update(bar, advance=expected[ask.key], description=where)
            if sample.error is not None:
                console.print(f"{where}: {sample.error}", style="magenta", markup=False)
            if n % 500 == 0 and not console.is_terminal:
                console.print(f"{n:,} of {len(expected):,} prompts")  # a log shows no bar


def _seconds(table: Quality, samples: dict[str, Sample]) -> Callable[[Ask], float]:
    """A function: about how long an ask takes."""
    pace = Pace(4096, lambda ask: ask.row.name in SELECTING)
    for cell in table.every_cell:
        for ask in cell.asks:
            if ask.key in samples:
                pace.add(ask, samples[ask.key])
    return pace.guess


def write(table: Quality, samples: dict[str, Sample], args: argparse.Namespace, console: Console) -> bool:
    """Write the table as Markdown, JSON and picture; whether nothing is left to ask (an error is an answer)."""
    grid = table.summaries(samples)
    asked = {
        (row.name, multiple, filler) for row, multiple, filler in product(table.rows, table.multiples, table.fillers)
    }
    bars = [
        _judge(bar, table, grid) for bar in BARS if (bar.method, bar.multiple, bar.filler) in asked and not args.grid
    ]
    text = _markdown(table, grid, bars, args)
    stem = args.out / table.title
    stem.with_suffix(".md").write_text(text, encoding="utf-8")
    stem.with_suffix(".json").write_text(_json(table, grid, bars, args), encoding="utf-8")
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    labels = [row.label for row in table.rows]
    if find_spec("matplotlib") is None:
        console.print("no picture: matplotlib is missing (pip install 'longspan[plot]')", markup=False)
    else:
        title = f"The bundled model, trained on {table.subject.window} tokens (1x)"
        tables.picture(grid, labels, table.multiples, table.fillers, title, stem.with_suffix(".png"))
    console.print(f"in {args.out}: {table.title}.md, {table.title}.json, samples.jsonl")
    return all(cell.error is not None or cell.n == cell.planned for cell in grid.values())


def _judge(bar: Bar, table: Quality, grid: dict[tuple[str, float, str], Summary]) -> tuple[str, str]:
    """A bar in words, and whether the method's best row meets it."""
    at = f"{bar.method} at {bar.multiple:g}x over {bar.filler}"
    what = f"{at}: at least {bar.found:.0%} found" if bar.found is not None else f"{at}: perplexity within 3%"
    best = _best(bar.method, bar.multiple, table, grid)
    cell = None if best is None else grid.get((best, bar.multiple, bar.filler))
    if cell is None or not cell.n:
        return what, "not measured"
    if bar.found is not None:
        return what, f"{tables.verdict(cell.found, cell.n, bar.found)}, `{best}`"
    if cell.compared == 0 or bar.ratio is None:
        return what, "not measured"
    word = "met" if cell.ratio <= bar.ratio else "missed"
    return what, f"**{word}**: {tables.change(cell)} over {cell.compared} prompts, `{best}`"


def _best(method: str, multiple: float, table: Quality, grid: dict[tuple[str, float, str], Summary]) -> str | None:
    """Of the method's rows that were asked most, the one that finds the largest share at a length over all fillers.

    Few prompts say too little to be chosen by; of equal rows it is the least perplexed.
    """
    scored = []
    for row in table.rows:
        cells = [grid[key] for filler in table.fillers if (key := (row.label, multiple, filler)) in grid]
        if row.name == method and cells and (asked := min(cell.n for cell in cells)):
            found, perplexed = sum(cell.rate for cell in cells), sum(cell.comparable for cell in cells)
            scored.append((asked, -found, perplexed, row.label))
    most = max((asked for asked, *_ in scored), default=0)
    return min(rest for asked, *rest in scored if asked == most)[-1] if scored else None


def _markdown(
    table: Quality, grid: dict[tuple[str, float, str], Summary], bars: list[tuple[str, str]], args: argparse.Namespace
) -> str:
    labels = [row.label for row in table.rows]
    if args.grid:  # best first

        def mean(label: str) -> float:
            rates = [cell.rate for (row, _, _), cell in grid.items() if row == label and cell.n]
            return sum(rates) / len(rates) if rates else -1.0

        labels.sort(key=mean, reverse=True)
    parts = [
        f"The bundled model (window {table.subject.window} tokens, weights `{table.subject.sha256[:12]}`), lengths in "
        "windows; a cell is right answers / prompts (95% Wilson interval in percent)."
    ]
    for filler in table.fillers:
        parts += [f"**Passkeys found over {filler}**", tables.found_table(grid, labels, table.multiples, filler)]
    for filler in table.fillers:
        window = next((cell.in_window for cell in grid.values() if cell.filler == filler), math.nan)
        heading = (
            f"**Perplexity of the last {TARGETS} tokens of {filler}**, against the same tokens in the window, stock"
        )
        if not math.isnan(window):
            heading += f" ({tables.number(window)}, by which each ratio is multiplied)"
        parts += [heading, tables.perplexity_table(grid, labels, table.multiples, filler)]
    if bars:
        parts += ["**Bars** (of each method the row that finds most at that length, of those asked most)"]
        parts += ["\n".join(f"- {what}: {judged}" for what, judged in bars)]
    remarks = tables.notes(grid)
    if remarks:
        parts += ["**Notes**", "\n".join(remarks)]
    where = environment()
    versions = ", ".join(f"{name} {where[name]}" for name in ("longspan", "torch", "transformers", "python"))
    parts.append(f"`{_command(args)}` ({versions}, {where['machine']}, one thread for each of the workers)")
    return "\n\n".join(parts) + "\n"


def _json(
    table: Quality, grid: dict[tuple[str, float, str], Summary], bars: list[tuple[str, str]], args: argparse.Namespace
) -> str:
    body = {
        "command": _command(args),
        "task": {"name": passkey.NAME, "version": passkey.VERSION, "scored_tokens": TARGETS, "depths": DEPTHS},
        "model": {"name": "longspan bundled", "sha256": table.subject.sha256, "window": table.subject.window},
        "first_seed": args.seed,
        "environment": environment(),
        "rows": {
            row.label: {
                f"{cell.multiple:g}x": cell.parameters
                for cell in table.cells
                if cell.row is row and cell.filler == table.fillers[0]
            }
            for row in table.rows
        },
        "cells": [{**asdict(cell), "rate": cell.rate} for cell in grid.values()],
        "bars": [{"bar": what, "result": judged} for what, judged in bars],
    }
    return json.dumps(finite(body), indent=1, allow_nan=False) + "\n"


def _command(args: argparse.Namespace) -> str:
    """The command that makes this table, without what does not change it."""
    words = ["python", "benchmarks/quality.py", *(["--grid"] if args.grid else [])]
    if args.rows:
        words += ["--rows", *args.rows]
    if args.lengths != (GRID_MULTIPLES if args.grid else MULTIPLES):
        words += ["--lengths", ",".join(f"{multiple:g}" for multiple in args.lengths)]
    if args.fillers != FILLERS:
        words += ["--fillers", ",".join(args.fillers)]
    words += [] if args.prompts is None else ["--prompts", str(args.prompts)]
    words += [] if args.seed == 0 else ["--seed", str(args.seed)]
    return shlex.join(words)


def dry_run(table: Quality, samples: dict[str, Sample], args: argparse.Namespace, console: Console) -> None:
    """What is left for each row, and about how long it takes."""
    seconds = _seconds(table, samples)
    left: dict[str, list[float]] = {}
    for part in table.left(samples, args.retry_errors):
        for ask in part:
            left.setdefault(ask.row.label, []).append(seconds(ask))
    for label, each in left.items():
        console.print(f"{label:<40} {len(each):>6} prompts {duration(sum(each)):>10} of one core", highlight=False)
    total = sum(map(sum, left.values()))
    n = sum(map(len, left.values()))
    console.print(f"{n:,} prompts, about {duration(total / args.workers)} with {args.workers} workers")


def _multiples(text: str) -> tuple[float, ...]:
    values = tuple(float(piece.strip().removesuffix("x")) for piece in text.split(","))
    if not all(0 < value <= 10_000 for value in values) or len(set(values)) < len(values):
        raise argparse.ArgumentTypeError(f"lengths are different multiples of the window such as 1,4,16, not {text!r}")
    return values


def _fillers(text: str) -> tuple[str, ...]:
    names = tuple(piece.strip() for piece in text.split(","))
    if not set(names) <= set(FILLERS) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"fillers are {' and '.join(FILLERS)}, not {text!r}")
    return names


def _positive(kind: type) -> Any:
    def parse(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"it must be above 0, not {text}")
        return value

    return parse


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, with the grid's own defaults where ``--grid`` is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="instead of every method")
    parser.add_argument("--lengths", type=_multiples, help="in windows, such as 1,4,16")
    parser.add_argument("--fillers", type=_fillers, default=FILLERS, help="noise,prose")
    parser.add_argument("--prompts", type=_positive(int), help="for every cell, instead of the table's own numbers")
    parser.add_argument("--seed", type=int, default=0, help="the first prompt's")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for samples and tables")
    parser.add_argument("--workers", type=_positive(int), default=2, help="processes of one thread each")
    parser.add_argument("--budget-minutes", type=_positive(float), help="ask nothing new after so long")
    parser.add_argument("--retry-errors", action="store_true", help="ask again what ended in an error")
    parser.add_argument("--forget", nargs="+", metavar="ROW", default=[], help="measure these rows anew")
    parser.add_argument("--grid", action="store_true", help="selections against positions instead of the table")
    parser.add_argument("--table-only", action="store_true", help="only write the table")
    parser.add_argument("--dry-run", action="store_true", help="only say what is left to do")
    args = parser.parse_args(argv)
    if args.lengths is None:
        args.lengths = GRID_MULTIPLES if args.grid else MULTIPLES
    if args.grid and not (args.rows or GRID):
        parser.error("the grid has no rows; give --rows")
    if args.forget and (args.table_only or args.dry_run):
        parser.error("--forget changes what has been measured; --table-only and --dry-run do not")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    console = Console()
    subject = Subject.of(load_bundled()[0])
    try:
        table = Quality(args, subject)
        forget = parse_rows(args.forget) if args.forget else []
        path = args.out / "samples.jsonl"
        if args.dry_run:
            dry_run(table, read_samples(path), args, console)
            return 0
        args.out.mkdir(parents=True, exist_ok=True)
        if args.table_only:
            return 0 if write(table, read_samples(path), args, console) else 3
        with Journal(path) as journal:
            if forget:
                strange = [row.label for row in forget if row not in table.rows]
                if strange:
                    raise LongspanError(f"--forget {strange[0]!r}: this is no row of the table; name it in --rows too")
                keys = {ask.key for cell in table.every_cell if cell.row in forget for ask in cell.asks}
                console.print(f"forgot {journal.forget(keys)} samples")
            try:
                measure(table, journal, args, console)
            except KeyboardInterrupt:
                console.print("stopped; the same command goes on from here")
            return 0 if write(table, journal.samples, args, console) else 3
    except LongspanError as error:
        print(f"quality: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
