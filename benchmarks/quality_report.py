"""The quality table as Markdown, as JSON and as a picture."""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from longspan_eval import passkey
from longspan_eval.cell import Cell
from longspan_eval.figure import Figure, three_digits
from longspan_eval.filler import FILLERS
from longspan_eval.perplexity import perplexity
from longspan_eval.report import charts, markdown
from longspan_eval.report.markdown import Figures
from longspan_eval.sample import Sample, environment, finite
from quality_table import DEPTHS, GRID_MULTIPLES, MULTIPLES, TARGETS, Quality, found_over, perplexity_of

Pairs = Mapping[tuple[str, float, str], tuple[Figure, Figure]]  # found, ratio; by row, length in windows and filler


class QualityReport:
    """A table and what has been measured of it, to be written."""

    def __init__(self, table: Quality, samples: Mapping[str, Sample], args: argparse.Namespace) -> None:
        self._table, self._args, self._samples = table, args, samples
        self._numbers = {(cell.table, cell.row, cell.column): n for n, cell in enumerate(table.plan.cells)}
        self._figures = table.plan.figures(samples)
        self._pairs = self._paired()

    @property
    def whole(self) -> bool:
        """Whether nothing is left to measure; an error is a result."""
        return not any(figure.unfinished for cell, figure in self._figures if not cell.table.startswith("baseline"))

    def markdown(self) -> str:
        table, rows = self._table, [spec.label for spec in self._table.specs]
        if self._args.grid:  # best first
            rows.sort(key=self._mean, reverse=True)
        parts = [
            f"The bundled model (window {table.subject.window} tokens, weights `{table.subject.sha256[:12]}`), lengths "
            "in windows. A cell is right answers / prompts, or the mean score (95% Wilson interval in percent)."
        ]
        for filler in table.fillers:
            name = found_over(filler)
            parts += [f"**{name}**", markdown.table(self._of(name), code=True, rows=rows)]
        for task in table.tasks:
            parts += [f"**{task.name}**: {task.summary}", markdown.table(self._of(task.name), code=True, rows=rows)]
        for filler in table.fillers:
            name = perplexity_of(filler)
            within = self._of(name)[0][1].baseline
            heading = f"**{name}**, against the same tokens in the window, stock"
            if not math.isnan(within):
                heading += f" ({three_digits(within)}, by which each ratio is multiplied)"
            parts += [heading, markdown.table(self._of(name), code=True, rows=rows)]
        remarks = [
            f"- `{row}` at {multiple:g}x over {filler}: {found.reason}"
            for (row, multiple, filler), (found, _) in self._pairs.items()
            if found.reason is not None
        ]
        remarks += [
            f"- `{cell.row}` at {cell.column}, {task.name}: {figure.reason}"
            for task in table.tasks
            for cell, figure in self._of(task.name)
            if figure.reason is not None
        ]
        names = [*map(found_over, table.fillers), *(task.name for task in table.tasks)]
        remarks += markdown.unfinished([pair for name in names for pair in self._of(name)])
        if remarks:
            parts += ["**Notes**", "\n".join(remarks)]
        where = f"{markdown.versions_line()}, {environment()['machine']}, one thread for each of the workers"
        parts.append(f"`{_command(self._args)}` ({where})")
        return "\n\n".join(parts) + "\n"

    def json(self) -> str:
        table = self._table
        asked = [task.name for task in table.tasks]
        body = {
            "command": _command(self._args),
            "task": {"name": passkey.NAME, "version": passkey.VERSION, "scored_tokens": TARGETS, "depths": DEPTHS},
            "model": {"name": "longspan bundled", "sha256": table.subject.sha256, "window": table.subject.window},
            "first_seed": self._args.seed,
            "environment": environment(),
            "rows": {
                spec.label: {
                    f"{multiple:g}x": spec.parameters(table.subject.window, round(multiple * table.subject.window))
                    for multiple in table.multiples
                }
                for spec in table.specs
            },
            "cells": [self._cell(*place) for place in self._pairs],
            "tasks": [  # without those that nothing was asked of yet
                self._task(n)
                for n, (cell, figure) in enumerate(self._figures)
                if cell.table in asked and (figure.n or figure.reason)
            ],
        }
        return _lines(finite(body)) + "\n"

    def draw(self, path: Path) -> None:
        """A PNG: a tile for each cell, passkeys found over each filler and then perplexity against the window's."""
        fillers = self._table.fillers
        panels = [charts.panel(f"passkeys found over {one}", self._of(found_over(one))) for one in fillers]
        panels += [charts.panel(task.name, self._of(task.name)) for task in self._table.tasks]
        panels += [
            charts.panel(f"perplexity over {one}, against the window's", self._of(perplexity_of(one)))
            for one in fillers
        ]
        title = f"The bundled model, trained on {self._table.subject.window} tokens (1x)"
        charts.tiles(panels, title, path, across=4 if self._table.tasks else len(fillers), label="found; 2 - ratio")

    def _of(self, name: str) -> Figures:
        return [(cell, figure) for cell, figure in self._figures if cell.table == name]

    def _paired(self) -> Pairs:
        """Passkeys found and perplexity side by side, in the order of rows, lengths and fillers."""
        table = self._table

        def figure(name: str, row: str, multiple: float) -> Figure:
            return self._figures[self._numbers[name, row, f"{multiple:g}x"]][1]

        return {
            (spec.label, multiple, filler): (
                figure(found_over(filler), spec.label, multiple),
                figure(perplexity_of(filler), spec.label, multiple),
            )
            for spec in table.specs
            for multiple in table.multiples
            for filler in table.fillers
        }

    def _mean(self, row: str) -> float:
        shares = [found.value for (name, _, _), (found, _) in self._pairs.items() if name == row and found.n]
        return fmean(shares) if shares else -1.0

    def _cell(self, row: str, multiple: float, filler: str) -> dict[str, Any]:
        found, ratio = self._pairs[row, multiple, filler]
        n = self._numbers[found_over(filler), row, f"{multiple:g}x"]
        cell: Cell = self._table.plan.cells[n]
        samples = [] if found.reason is not None else self._table.plan.measured(n, self._samples)
        losses = [one.loss for one in samples if one.scored == TARGETS]
        return {
            "row": row,
            "multiple": multiple,
            "length": cell.measures[0].length,
            "filler": filler,
            "planned": found.planned,
            "n": found.n,
            "found": round(found.value * found.n) if found.n else 0,
            "interval": found.interval,
            "perplexity": perplexity(losses) if losses else math.nan,
            "compared": ratio.n,
            "ratio": ratio.value,
            "ratio_interval": ratio.interval,
            "in_window": ratio.baseline,
            "seconds": fmean(one.seconds for one in samples) if samples else math.nan,
            "error": found.reason,
            "rate": found.value,
        }

    def _task(self, n: int) -> dict[str, Any]:
        """A cell of a task that is no pass key."""
        cell, figure = self._figures[n]
        samples = [] if figure.reason is not None else self._table.plan.measured(n, self._samples)
        return {
            "task": cell.table,
            "row": cell.row,
            "multiple": self._table.multiple(cell),
            "length": cell.measures[0].length,
            "planned": figure.planned,
            "n": figure.n,
            "score": figure.value,
            "interval": figure.interval,
            "seconds": fmean(one.seconds for one in samples) if samples else math.nan,
            "error": figure.reason,
        }


def _command(args: argparse.Namespace) -> str:
    """The command that makes this table, without what does not change it."""
    words = ["python", "benchmarks/quality.py", *(["--grid"] if args.grid else [])]
    if args.rows:
        words += ["--rows", *args.rows]
    if args.lengths != (GRID_MULTIPLES if args.grid else MULTIPLES):
        words += ["--lengths", ",".join(f"{multiple:g}" for multiple in args.lengths)]
    if args.fillers != FILLERS:
        words += ["--fillers", ",".join(args.fillers)]
    words += [] if args.tasks is None else ["--tasks", ",".join(args.tasks)]
    words += [] if args.prompts is None else ["--prompts", str(args.prompts)]
    words += [] if args.seed == 0 else ["--seed", str(args.seed)]
    return shlex.join(words)


def _lines(body: Mapping[str, Any]) -> str:
    """Compact JSON with a line for each cell, and for every other value; numbers have six digits."""
    compact = partial(json.dumps, allow_nan=False, separators=(",", ":"))
    parts = []
    for name, value in _six_digits(body).items():
        text = compact(value)
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(map(compact, value)) + "\n]"
        parts.append(f"{compact(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}"


def _six_digits(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: _six_digits(one) for name, one in value.items()}
    return [_six_digits(one) for one in value] if isinstance(value, (list, tuple)) else value
