"""Figures in a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from longspan.terminal import Column, Sheet
from longspan_eval.figure import Figure, short, wilson
from longspan_eval.report.markdown import Figures
from longspan_eval.spec import STOCK

_GAP = 2


class Beside:
    """Tables of the same rows: beside each other, or one below the other if they do not fit.

    Args:
        tables: each with its title; cells of the same rows and columns, of which unfinished ones show a dot.
    """

    def __init__(self, tables: Sequence[tuple[str, Figures]]) -> None:
        columns = list(dict.fromkeys(cell.column for cell, _ in tables[0][1]))
        heads = [Column(f"{column:>4}", "right") for column in columns]
        self._beside: list[Sheet] = []
        self._below: list[Sheet] = []
        for title, figures in tables:
            nearest = [one.value for cell, one in figures if cell.column == columns[0] and one.mark is None]
            rows = _rows(figures, min(nearest, default=math.nan))
            named = [[Text(name, style="bold" if name == STOCK else ""), *row] for name, row in rows.items()]
            self._below.append(Sheet([Column("method"), *heads], named, title=title))
            first = not self._beside
            self._beside.append(self._below[0] if first else Sheet(heads, list(rows.values()), title=title))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        free = options.update(max_width=10_000)
        sizes = [Measurement.get(console, free, table).maximum for table in self._beside]
        if sum(sizes) + _GAP * (len(sizes) - 1) <= options.max_width:
            grid = Table.grid(padding=(0, _GAP, 0, 0))
            grid.add_row(*self._beside)
            yield grid
        else:
            yield from self._below


def _rows(figures: Figures, good: float) -> dict[str, list[Text]]:
    rows: dict[str, list[Text]] = {}
    for cell, figure in figures:
        rows.setdefault(cell.row, []).append(_text(figure, good))
    return rows


def _text(figure: Figure, good: float) -> Text:
    """A figure in a few characters, coloured by how good it is; ``good``: a perplexity, or NaN while it is unknown."""
    if figure.reason is not None:
        return Text("oom" if figure.mark == "out of memory" else "n/a", style="magenta")
    if figure.unfinished or figure.mark is not None:
        return Text("·", style="dim")
    value = figure.value
    if figure.unit == "perplexity":
        style = "" if math.isnan(good) else "green" if value < 1.25 * good else "yellow" if value < 2 * good else "red"
        return Text(short(value), style=style)
    style = "bold green" if value >= 0.8 else "yellow" if value >= 0.2 else "red"
    return Text(f"{round(value * figure.n)}/{figure.n}", style=style)


def totals(figures: Figures, title: str, filled: str = "█░") -> RenderableType:
    """The counts of each row, all columns together, best first; rows with an error are left out.

    Args:
        filled: the characters of a bar: its filled part, and the rest.
    """
    sums: dict[str, list[Figure]] = {}
    for cell, figure in figures:
        sums.setdefault(cell.row, []).append(figure)
    shown = []
    for row, each in sums.items():
        if all(one.reason is None for one in each):
            shown.append((round(sum(one.value * one.n for one in each)), sum(one.n for one in each), row))
    text = Text(f"\n  {title}", style="bold") if shown else Text()
    width = max((len(name) for _, _, name in shown), default=0) + 1
    for right, n, name in sorted(shown, key=lambda one: -one[0]):
        text.append(f"\n  {name:<{width}}", style="bold" if name == STOCK else "")
        bar = round(24 * right / n)
        text.append(filled[0] * bar, style="green")
        text.append(filled[1] * (24 - bar), style="dim")
        low, high = wilson(right, n)
        text.append(f" {right:>3} of {n} found", style="")
        text.append(f"  ({low:.0%}-{high:.0%})", style="dim")
    return text
