"""A run's folder: written while the run goes on and if it is stopped, and shown on the terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from longspan.cli.output import print_json, say
from longspan.errors import LongspanError
from longspan.signals import Stopped
from longspan.terminal import Column, Sheet

if TYPE_CHECKING:
    from longspan_eval.journal import Journal
    from longspan_eval.sample import Sample
    from longspan_eval.schedule import CellPlan

_BORDER = re.compile(r"(?<!\\)\|")  # a text's own are escaped


@contextmanager
def resumable(folder: Path, journal: Journal, write: Callable[[], object], console: Console) -> Iterator[None]:
    """Call ``write`` after a block that measures; if a signal ended the block, exit with its code."""
    code = 0
    try:
        yield
    except KeyboardInterrupt:
        code = 130
    except Stopped as signal:
        code = signal.code
    write()
    if code:
        there = f"{len(journal.samples):,} samples in {folder}"
        say(console, f"stopped, with {there}; the same command goes on from here")
        raise typer.Exit(code)


def check_measured(plans: Iterable[CellPlan], samples: Mapping[str, Sample]) -> None:
    """Raise if every sample of what was asked for is an error, so that a script learns of it by the exit code.

    A folder's other samples, of other methods or tables, say nothing of that.
    """
    asked = {key for plan in plans for keys in plan.keys for key in keys}
    own = [sample for key, sample in samples.items() if key in asked]
    errors = [sample.error for sample in own if sample.error is not None]
    if errors and len(errors) == len(own):
        count = f"all {len(errors):,} measurements" if len(errors) > 1 else "the measurement"
        raise LongspanError(f"{count} ended in an error, the first: {errors[0]}; --retry-errors repeats them")


def show_results(folder: Path, as_json: bool) -> None:
    """Print the results of a run's folder on stdout: ``results.json`` if ``as_json``, otherwise ``summary.md``."""
    if as_json:
        print_json(json.loads((folder / "results.json").read_text(encoding="utf-8")))
        return
    text, page = (folder / "summary.md").read_text(encoding="utf-8"), Console(highlight=False)
    if page.is_terminal:
        print_markdown(page, text)
    else:
        print(text, end="")


def print_markdown(console: Console, text: str) -> None:
    """Print Markdown on a terminal, with its tables as ``Sheet``s."""
    from rich.markdown import Markdown  # a slow import, so only if Markdown is printed

    for block in re.split(r"\n{2,}", text.strip()):
        lines = block.split("\n")
        if len(lines) > 1 and all(line.startswith("|") for line in lines) and set(lines[1]) <= set("|-: "):
            heads, rows = _cells_of(lines[0]), [_cells_of(line) for line in lines[2:]]
            rights = [cell.endswith(":") for cell in _cells_of(lines[1])]
            columns = [Column(head, "right" if right else "left") for head, right in zip(heads, rights, strict=True)]
            console.print(Sheet(columns, rows))
        else:
            console.print(Markdown(block))
            console.print()


def _cells_of(line: str) -> list[str]:
    cells = _BORDER.split(line.strip().strip("|"))
    return [cell.strip().replace("`", "").replace("**", "").replace("\\|", "|") for cell in cells]
