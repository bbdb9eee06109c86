"""Passkeys over noise and over prose, and perplexity, at 1 to 64 windows of the bundled model: every method, one table.

    python benchmarks/quality.py                    # the table; hours on two cores
    python benchmarks/quality.py --grid             # selections against positions, at 8 and 16 windows
    python benchmarks/quality.py --dry-run          # what is left to do, and about how long that takes
    python benchmarks/quality.py --table-only       # the table from what has been measured so far

Every sample is on disk (OUT/samples.jsonl) as soon as it is there, so the run may be stopped or killed at any time; the
same command takes it up again. At its end it moves them to OUT/samples.jsonl.gz; both are read. The samples that say
most come first, and the table can be written at any moment. A sample is known by task, length, filler, seed, depth, the
method with all its parameters and the SHA-256 of the weights: change one of them and it is measured anew. Code is not
among them: after mending a method, give ``--forget ROW``.

Rows are written as NAME or NAME:key=value,key=value, with the names and parameters of ``longspan methods``; ``angles=``
puts scaled angles under a method, and ``calibration=FILE`` (or ``bundled``) gives it a calibration.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from longspan.bundled import load_bundled
from longspan.errors import LongspanError
from longspan_eval import tables
from longspan_eval.estimate import Pace, duration
from longspan_eval.filler import FILLERS
from longspan_eval.plan import Ask
from longspan_eval.results import Sample
from longspan_eval.rows import parse_rows
from longspan_eval.subject import Subject
from longspan_eval.workers import run
from quality_bars import BARS, SELECTING, judge
from quality_pages import as_json, markdown
from quality_table import GRID, GRID_MULTIPLES, MULTIPLES, Quality
from samples import ARCHIVE, Samples, read

OUT = Path(__file__).parent / "results" / "quality"


def measure(table: Quality, journal: Samples, args: argparse.Namespace, console: Console) -> None:
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
        judge(bar, table.rows, table.fillers, grid)
        for bar in BARS
        if (bar.method, bar.multiple, bar.filler) in asked and not args.grid
    ]
    text = markdown(table, grid, bars, args)
    stem = args.out / table.title
    stem.with_suffix(".md").write_text(text, encoding="utf-8")
    stem.with_suffix(".json").write_text(as_json(table, grid, bars, args), encoding="utf-8")
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    labels = [row.label for row in table.rows]
    if find_spec("matplotlib") is None:
        console.print("no picture: matplotlib is missing (pip install 'longspan[plot]')", markup=False)
    else:
        title = f"The bundled model, trained on {table.subject.window} tokens (1x)"
        tables.picture(grid, labels, table.multiples, table.fillers, title, stem.with_suffix(".png"))
    console.print(f"in {args.out}: {table.title}.md, {table.title}.json, {ARCHIVE}")
    return all(cell.error is not None or cell.n == cell.planned for cell in grid.values())


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
        if args.dry_run:
            dry_run(table, read(args.out), args, console)
            return 0
        args.out.mkdir(parents=True, exist_ok=True)
        if args.table_only:
            return 0 if write(table, read(args.out), args, console) else 3
        with Samples(args.out) as journal:
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
            journal.pack()
            return 0 if write(table, journal.samples, args, console) else 3
    except LongspanError as error:
        print(f"quality: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
