"""Every task that the bundled model can do in its window, at 1 to 64 windows, by every method: one board.

    python benchmarks/quality.py                    # the board; many hours on two cores
    python benchmarks/quality.py --tasks facts      # pass keys and perplexity, and of the other tasks facts alone
    python benchmarks/quality.py --grid             # selections against positions, at 8 and 16 windows
    python benchmarks/quality.py --dry-run          # what is left to do, and about how long that takes
    python benchmarks/quality.py --table-only       # the tables from what has been measured so far

Pass keys over noise and over prose come with the perplexity of the text's end. The other tasks are those of
``longspan.bundled.card()`` with a mean score of 80% or more. A cell has 100 prompts to 16 windows and 50 beyond; 10
beyond for methods that read the whole text, whose time is quadratic.

Every sample is on disk (OUT/samples.jsonl) as soon as it is there, so the run may be stopped or killed at any time; the
same command takes it up again. At its end it moves them to OUT/samples-TOKENS.jsonl.xz; both are read. Every cell gets
its first ten prompts before any gets more, and the tables can be written at any moment. The run is nice to other
programs.

A sample is known by task, length, seed, depth, the method with the parameters that are not at their defaults, and the
SHA-256 of the weights: change one of them and it is measured anew. Code, and so a default, is not among them: after
changing a method, give ``--forget ROW``.

Rows are written as NAME or NAME:key=value,key=value, with the names and parameters of ``longspan methods``; ``angles=``
puts scaled angles under a method, and ``calibration=FILE`` (or ``bundled``) gives it a calibration.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from longspan.bundled import load_bundled
from longspan.errors import LongspanError
from longspan_eval import run, workers
from longspan_eval.estimate import duration
from longspan_eval.filler import FILLERS
from longspan_eval.sample import Sample
from longspan_eval.session import bundled
from longspan_eval.spec import parse_specs
from longspan_eval.subject import Subject
from longspan_eval.tasks import TASKS
from quality_report import QualityReport
from quality_table import GRID, GRID_MULTIPLES, MULTIPLES, Quality
from samples import ARCHIVES, Samples, read

OUT = Path(__file__).parent / "results" / "quality"


def measure(table: Quality, journal: Samples, args: argparse.Namespace, console: Console) -> None:
    """Measure what is left, keeping every sample at once."""
    parts = table.plan.left(journal.samples, retry_errors=args.retry_errors, rank=table.rank)
    pace = table.plan.pace(table.subject, journal.samples)
    seconds = sum(pace.guess(request.measure) for part in parts for request in part)
    console.print(f"{sum(map(len, parts)):,} prompts to ask, {duration(seconds / args.workers)} at least")
    deadline = None if args.budget_minutes is None else time.monotonic() + 60 * args.budget_minutes
    answers = partial(workers.run, load=bundled, workers=args.workers, deadline=deadline)
    run.measure(table.plan, parts, journal, pace, answers, console=console, at_once=args.workers)


def write(table: Quality, samples: Mapping[str, Sample], args: argparse.Namespace, console: Console) -> bool:
    """Write the table as Markdown, JSON and picture; whether nothing is left to measure (an error is a result)."""
    report, stem = QualityReport(table, samples, args), args.out / table.title
    text = report.markdown()
    stem.with_suffix(".md").write_text(text, encoding="utf-8")
    stem.with_suffix(".json").write_text(report.json(), encoding="utf-8")
    report.draw(stem.with_suffix(".png"))
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(f"in {args.out}: {table.title}.md, {table.title}.json, {ARCHIVES}")
    return report.whole


def dry_run(table: Quality, samples: Mapping[str, Sample], args: argparse.Namespace, console: Console) -> None:
    """What is left for each row, and about how long it takes."""
    pace = table.plan.pace(table.subject, samples)
    left: dict[str, list[float]] = {}
    for part in table.plan.left(samples, retry_errors=args.retry_errors, rank=table.rank):
        for request in part:
            left.setdefault(request.measure.spec.label, []).append(pace.guess(request.measure))
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


def _tasks(text: str) -> tuple[str, ...]:
    names = tuple(piece.strip() for piece in text.split(",") if piece.strip())
    strange = next((name for name in names if name not in TASKS or TASKS[name].data is not None), None)
    if strange is not None or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"tasks are different made tasks of `longspan eval --list`, not {text!r}")
    return names


def _positive(kind: type) -> Any:
    def parse(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"it must be above 0, not {text}")
        return value

    return parse


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, with the grid's own defaults if ``--grid`` is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="instead of every method")
    parser.add_argument("--lengths", type=_multiples, help="in windows, such as 1,4,16")
    parser.add_argument("--fillers", type=_fillers, default=FILLERS, help="noise,prose")
    parser.add_argument(
        "--tasks", type=_tasks, help="beside pass keys, instead of all that the card allows; '' for none"
    )
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
        forget = parse_specs(args.forget) if args.forget else []
        if args.dry_run:
            dry_run(table, read(args.out), args, console)
            return 0
        os.nice(10)
        args.out.mkdir(parents=True, exist_ok=True)
        if args.table_only:
            return 0 if write(table, read(args.out), args, console) else 3
        with Samples(args.out) as journal:
            if forget:
                strange = [spec.label for spec in forget if spec not in table.specs]
                if strange:
                    raise LongspanError(f"--forget {strange[0]!r}: this is no row of the table; name it in --rows too")
                labels = {spec.label for spec in forget}
                pairs = zip(table.plan.cells, table.plan.keys, strict=True)
                keys = {key for cell, keys in pairs if cell.row in labels for key in keys}
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
