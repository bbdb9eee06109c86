"""``longspan eval --dry-run``: what would be measured, and how long it takes on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from longspan.cli.options import say
from longspan.tables import Column, Sheet
from longspan_eval.estimate import Pace, duration
from longspan_eval.plan import Ask, Cell
from longspan_eval.results import Sample
from longspan_eval.study import Study


@dataclass(frozen=True)
class Planned:
    """What is left to ask of one row.

    Attributes:
        cells: with something left to ask. prompts: of those. tokens: of the prompts and their answers, at most.
        seconds: that they take one after the other; those of one length as they took, of others in proportion.
    """

    row: str
    cells: int
    prompts: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """What is left to ask, by row.

    Attributes:
        rows: one for each row of the study.
        done: prompts that have been answered.
        at_once: how many prompts are read at a time.
        basis: what the seconds follow from.
    """

    rows: tuple[Planned, ...]
    done: int
    at_once: int
    basis: str

    @property
    def whole(self) -> Planned:
        """All rows together."""
        each = self.rows
        return Planned(
            "all", sum(row.cells for row in each), sum(row.prompts for row in each), sum(row.tokens for row in each),
            sum(row.seconds for row in each),
        )  # fmt: skip

    @property
    def seconds(self) -> float:
        """Until all of it is measured."""
        return self.whole.seconds / self.at_once

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        whole = self.whole
        return {
            "cells": whole.cells, "prompts": whole.prompts, "tokens": whole.tokens, "seconds": self.seconds,
            "done": self.done, "at_once": self.at_once, "basis": self.basis, "rows": [asdict(row) for row in self.rows],
        }  # fmt: skip

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [Column("row", style="cyan"), *(Column(name, "right") for name in ("cells", "prompts", "tokens"))]
        shown = [*self.rows, self.whole] if len(self.rows) > 1 else self.rows
        rows = [
            (row.row, f"{row.cells:,}", f"{row.prompts:,}", f"{row.tokens:,}", duration(row.seconds)) for row in shown
        ]
        yield Sheet([*columns, Column("about", "right")], rows)
        said = f"about {duration(self.seconds)}, {self.at_once} prompt{'s' if self.at_once > 1 else ''} at a time"
        yield Text(f"{said}; {self.done:,} prompts are answered. {self.basis}")


def estimate(
    study: Study,
    cells: Sequence[Cell],
    parts: Sequence[Sequence[Ask]],
    pace: Pace,
    ask: Callable[[Ask], Sample],
    *,
    at_once: int,
    console: Console,
) -> Estimate:
    """What is left and how long it takes, from what is known; of a row of which nothing is, one prompt is read now.

    Args:
        parts: what is left, from ``Study.left``.
        pace: what is known from samples; it learns from what is read.
        ask: reads a prompt here.
        at_once: how many prompts are to be read at a time.
    """
    left = [one for part in parts for one in part]
    read: list[Ask] = []
    for row in study.rows:
        mine = [one for one in left if one.row.label == row.label]
        if not mine or pace.of_row(mine[0]) is not None:
            continue
        # A row is timed on its shortest prompt, twice: the first one pays for what is made once.
        shortest = min(mine, key=lambda one: one.length)
        say(console, f"reading a prompt of {shortest.length:,} tokens under {row.label}")
        if ask(shortest).error is None:
            pace.add(shortest, ask(shortest))
            read.append(shortest)
    planned = []
    for row in study.rows:
        mine = [one for one in left if one.row.label == row.label and study.too_long(pace, one) is None]
        planned.append(
            Planned(
                row.label,
                len({one.cell for one in mine}),
                len(mine),
                sum(one.length for one in mine),
                sum(pace.guess(one) for one in mine),
            )
        )
    asked = sum(len(cell.asks) for cell in cells)
    return Estimate(tuple(planned), asked - len(left), at_once, _basis(read, asked - len(left)))


def _basis(read: Sequence[Ask], done: int) -> str:
    said = [f"samples of this run ({done:,} prompts)"] if done else []
    if read:
        lengths = sorted({one.length for one in read})
        where = f"{lengths[0]:,}" if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,}"
        said.append(f"{len(read)} prompts of {where} tokens, read now")
    return f"Measured: {' and '.join(said)}; other lengths in proportion to their work." if said else "Nothing is left."
