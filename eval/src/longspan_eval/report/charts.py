"""Pictures: tiles coloured from bad to good, lines with intervals, and matrices of kinds or numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import PercentFormatter

from longspan.files import save_figure
from longspan_eval.figure import Figure, change
from longspan_eval.report.markdown import Figures

GOOD, MIDDLE, BAD, NONE = "#2a8c82", "#f2d9a0", "#d9553f", "#e4e4e4"
LINES = ("#8a8f94", BAD, "#17736b", "#c98a1b", "#3b6fb6", "#7b4fa3", "#5f8f3a")
KINDS, OUTLINE = ("#f1f1ee", "#b9c8d3", LINES[2]), "#d1432b"
_NUMBERS = 24  # a matrix of at most so many rows has its numbers written in


@dataclass(frozen=True)
class Panel:
    """Tiles by row and column.

    Attributes:
        shades: of each row the tiles' shades, from 0, bad, to 1, good; NaN for one without a figure.
        texts: labels of the tiles; none if it is empty.
        across: a text over whole columns, by their number.
    """

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    shades: Sequence[Sequence[float]]
    texts: Sequence[Sequence[str]] = ()
    across: Mapping[int, str] | None = None


def panel(title: str, figures: Figures, columns: Sequence[str] | None = None) -> Panel:
    """The panel of a table.

    A perplexity has the colour of the lowest of its table over itself: 1 is the best there is, one half twice as much.
    A ratio has that of 2 less itself.
    """
    rows = list(dict.fromkeys(cell.row for cell, _ in figures))
    heads = list(dict.fromkeys(cell.column for cell, _ in figures))
    by_place = {(cell.row, cell.column): figure for cell, figure in figures}
    lowest = min((one.value for _, one in figures if one.mark is None), default=math.nan)
    tiles = [[by_place.get((row, head)) for head in heads] for row in rows]
    shades = [[_shade(one, lowest) for one in line] for line in tiles]
    texts = [["" if one is None else on_tile(one) for one in line] for line in tiles]
    return Panel(title, rows, columns or heads, shades, texts)


def _shade(figure: Figure | None, lowest: float) -> float:
    if figure is None or figure.mark is not None:
        return math.nan
    if figure.unit == "perplexity":
        return lowest / figure.value
    return min(max(2 - figure.value, 0.0), 1.0) if figure.unit == "ratio" else figure.value


def on_tile(figure: Figure) -> str:
    """A tile's text for a figure: a few characters."""
    if figure.mark is not None:
        return {"out of memory": "oom", "skipped": "skip"}.get(figure.mark, figure.mark)
    value = figure.value
    if figure.unit == "ratio":
        return change(figure).partition(" ±")[0]
    if figure.unit == "count":
        return f"{round(value * figure.n)}/{figure.n}"
    if figure.unit == "perplexity":
        return f"{value:.1f}" if value < 100 else f"{value:.0f}" if value < 10_000 else f"{value:.0e}"
    return f"{100 * value:.0f}"


def tiles(
    panels: Sequence[Panel], title: str, path: Path, *, across: int = 3, x: str = "", y: str = "", label: str = "score"
) -> None:
    """A PNG of panels whose rows are called alike, ``across`` of them beside each other."""
    across = min(across, len(panels))
    down = math.ceil(len(panels) / across)
    first = panels[0]
    written = max((len(text) for one in panels for line in one.texts for text in line), default=0)
    names, titles = max(map(len, first.rows)), max(len(one.title) for one in panels)
    wide = max(max(0.5, 0.13 * written) * len(first.columns), 0.085 * titles) + 0.4  # as wide as its title, too
    size = (across * wide + 0.075 * names + 1.4, down * (0.28 * len(first.rows) + 0.7) + 1.0)
    plt = pyplot()
    colours = matplotlib.colors.LinearSegmentedColormap.from_list("score", [BAD, MIDDLE, GOOD]).with_extremes(bad=NONE)
    figure, axes = plt.subplots(down, across, figsize=size, squeeze=False, sharey=True, layout="constrained")
    image = None
    for axis, one in zip(axes.flat, panels, strict=False):
        image = axis.imshow(one.shades, cmap=colours, vmin=0, vmax=1, aspect="auto")
        for at, line in enumerate(one.texts):
            for n, text in enumerate(line):
                if text:
                    axis.text(n, at, text, ha="center", va="center", fontsize=7)
        for n, text in (one.across or {}).items():
            axis.text(n, (len(one.rows) - 1) / 2, text, ha="center", va="center", fontsize=7, rotation=90)
        axis.set_title(one.title, fontsize=9, loc="left")
        axis.set_xticks(range(len(one.columns)), one.columns, fontsize=7)
        axis.set_yticks(range(len(one.rows)), one.rows, fontsize=7)
        axis.set_xticks([n - 0.5 for n in range(1, len(one.columns))], minor=True)
        axis.set_yticks([n - 0.5 for n in range(1, len(one.rows))], minor=True)
        axis.grid(which="minor", color="white", linewidth=1.5)
        axis.tick_params(which="both", length=0)
        axis.spines[:].set_visible(False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(title, fontsize=10)
    figure.supxlabel(x, fontsize=9)
    figure.supylabel(y, fontsize=9)
    bar = figure.colorbar(
        image, ax=axes, shrink=min(0.8, 2.5 / size[1]), aspect=15, format=PercentFormatter(1, decimals=0)
    )
    bar.set_label(label, fontsize=8)
    save_figure(figure, path, dpi=150 if len(panels) < 10 else 110)


def lines(figures: Figures, title: str, path: Path) -> bool:
    """A PNG of shares, a line for each row over the columns, with 95% intervals; whether there was anything to draw."""
    rows = list(dict.fromkeys(cell.row for cell, _ in figures))
    columns = list(dict.fromkeys(cell.column for cell, _ in figures))
    shares: dict[str, dict[int, Figure]] = {}
    for cell, figure in figures:
        if figure.unit == "share" and figure.mark is None:
            shares.setdefault(cell.row, {})[columns.index(cell.column)] = figure
    if not shares:
        return False
    plt = pyplot()
    chart, axis = plt.subplots(figsize=(max(0.9 * len(columns) + 3.6, 6.4), 3.6), layout="constrained")
    for n, row in enumerate(rows):
        points = sorted(shares.get(row, {}).items())
        if not points:
            continue
        across = [x + 0.05 * (n - (len(rows) - 1) / 2) for x, _ in points]  # beside each other if they coincide
        values = [one.value for _, one in points]
        low = [max(one.value - (one.interval or (one.value, 0.0))[0], 0.0) for _, one in points]
        high = [max((one.interval or (0.0, one.value))[1] - one.value, 0.0) for _, one in points]
        axis.errorbar(
            across, values, yerr=[low, high], label=row, color=LINES[n % len(LINES)], marker="o", markersize=4,
            linewidth=1.6, elinewidth=0.7, alpha=0.95,
        )  # fmt: skip
    axis.set_xticks(range(len(columns)), columns, fontsize=8)
    axis.set_ylim(-0.04, 1.04)
    axis.yaxis.set_major_formatter("{x:.0%}")
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel("windows (tokens)", fontsize=8)
    save_figure(chart, path, dpi=150)
    return True


def kinds(
    values: Sequence[Sequence[int]],
    names: Sequence[str],
    groups: Mapping[int, str],
    title: str,
    path: str | Path,
    *,
    outlined: Sequence[int] = (),
    outline: str = "",
    x: str = "",
    y: str = "",
) -> None:
    """A PNG of a matrix whose entries are kinds.

    Args:
        values: of each row, 0 for the background or the number of a kind, from 1.
        names: of the kinds from 1 on, for the legend.
        groups: of consecutive rows: each group's name by its first row.
        outlined: columns with an outline, which the legend calls ``outline``.
        x, y: what columns and rows are.
    """
    rows, columns = len(values), len(values[0])
    size = min(max(0.09 * columns, 5.0), 24.0) + 1.2, min(max(0.16 * rows, 1.2), 20.0) + 1.5
    figure, axis = _matrix(size, title, x, y)
    colours = matplotlib.colors.ListedColormap(KINDS)
    axis.imshow(values, cmap=colours, vmin=0, vmax=len(KINDS) - 1, aspect="auto", interpolation="nearest")
    axis.set_yticks(list(groups), list(groups.values()), fontsize=7)
    for n in list(groups)[1:]:
        axis.axhline(n - 0.5, color="white", linewidth=1.5)
    for n in outlined:
        axis.add_patch(Rectangle((n - 0.5, -0.5), 1, rows, fill=False, edgecolor=OUTLINE, linewidth=1.8, zorder=3))
    axis.spines[:].set_visible(False)
    legend = [Patch(color=colour, label=name) for colour, name in zip(KINDS[1:], names, strict=True)][::-1]
    if outlined:
        legend.append(Patch(fill=False, edgecolor=OUTLINE, label=outline))
    figure.legend(handles=legend, loc="outside lower right", ncols=3, fontsize=8, frameon=False)
    save_figure(figure, path, dpi=150)


def numbers(
    values: Sequence[Sequence[float]], title: str, path: str | Path, *, x: str = "", y: str = "", label: str = ""
) -> None:
    """A PNG of a square matrix of integers, which are written in if they are few.

    Args:
        values: of each row; NaN for an empty place.
    """
    side = min(max(0.32 * len(values), 3.5), 8.0)
    figure, axis = _matrix((side + 1.2, side + 0.6), title, x, y)
    colours = pyplot().get_cmap("YlGnBu").with_extremes(bad="#ffffff")
    image = axis.imshow(values, cmap=colours, interpolation="nearest")
    if len(values) <= _NUMBERS:
        places = [(i, j, n) for i, line in enumerate(values) for j, n in enumerate(line) if not math.isnan(n)]
        dark = 0.55 * max(n for _, _, n in places)
        for i, j, n in places:
            axis.text(j, i, f"{n:.0f}", ha="center", va="center", fontsize=7, color="w" if n > dark else "k")
    figure.colorbar(image, ax=axis, shrink=0.8, label=label)
    save_figure(figure, path, dpi=150)


def _matrix(size: tuple[float, float], title: str, x: str, y: str) -> tuple[Any, Any]:
    """A figure with one axis for a matrix."""
    figure, axis = pyplot().subplots(figsize=size, layout="constrained")
    axis.set_xlabel(x, fontsize=8)
    axis.set_ylabel(y, fontsize=8)
    axis.tick_params(labelsize=7, length=2)
    figure.suptitle(title, fontsize=10)
    return figure, axis


def pyplot() -> Any:
    """matplotlib's, drawing into files only."""
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt
