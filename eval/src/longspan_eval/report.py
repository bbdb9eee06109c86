"""Results to look at: a table for the terminal and a heat map over length and depth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from longspan.files import save_figure
from longspan.tables import Column, Sheet
from longspan_eval.results import Cell, Sample

FOUND, SURPRISE = "passkey found", "perplexity"
_GAP = 2

Cells = Mapping[tuple[str, int], Cell]


def table(
    cells: Cells, methods: Sequence[str], lengths: Sequence[int], heads: Sequence[str], *, baseline: float
) -> RenderableType:
    """Passkeys found and perplexity, side by side where there is room; cells not yet measured show a dot.

    Args:
        cells: what has been measured, by ``(method, length)``.
        methods, lengths: the rows and the columns.
        heads: a heading for each length.
        baseline: the perplexity that counts as good, for the colours; NaN while unknown.
    """
    names = [Text(method, style="bold" if method == "stock" else "") for method in methods]
    rows = [[cells.get((method, length)) for length in lengths] for method in methods]
    figures = [Column(f"{head:>4}", "right") for head in heads]
    found = [[_found(cell) for cell in row] for row in rows]
    surprise = [[_perplexity(cell, baseline) for cell in row] for row in rows]
    return _Halves(names, figures, found, surprise)


class _Halves:
    """Two tables of the same rows: beside each other, or one below the other where they do not fit."""

    def __init__(
        self, names: list[Text], figures: list[Column], found: list[list[Text]], surprise: list[list[Text]]
    ) -> None:
        named = [Column("method"), *figures]
        self._left = Sheet(named, [[n, *row] for n, row in zip(names, found, strict=True)], title=FOUND)
        self._right = Sheet(figures, surprise, title=SURPRISE)
        self._below = Sheet(named, [[n, *row] for n, row in zip(names, surprise, strict=True)], title=SURPRISE)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        free = options.update(max_width=10_000)
        sizes = [Measurement.get(console, free, half).maximum for half in (self._left, self._right)]
        if sum(sizes) + _GAP <= options.max_width:
            both = Table.grid(padding=(0, _GAP, 0, 0))
            both.add_row(self._left, self._right)
            yield both
        else:
            yield self._left
            yield self._below


def _found(cell: Cell | None) -> Text:
    if cell is None:
        return Text("·", style="dim")
    if cell.error is not None:
        return _failure(cell.error)
    style = "bold green" if cell.rate >= 0.8 else "yellow" if cell.rate >= 0.2 else "red"
    return Text(f"{cell.found}/{cell.n}", style=style)


def _perplexity(cell: Cell | None, baseline: float) -> Text:
    if cell is None:
        return Text("·", style="dim")
    if cell.error is not None:
        return _failure(cell.error)
    value = cell.perplexity
    if math.isnan(baseline):
        return Text(short(value))
    return Text(short(value), style="green" if value < 1.25 * baseline else "yellow" if value < 2 * baseline else "red")


def _failure(error: str) -> Text:
    return Text("oom" if error == "out of memory" else "n/a", style="magenta")


def short(value: float) -> str:
    """A positive number in at most four or five characters: 9.8, 134, 2.1k."""
    if value < 99.95:
        return f"{value:.1f}"
    if value < 999.5:
        return f"{value:.0f}"
    return f"{value / 1000:.1f}k" if value < 99_950 else f"{value / 1000:.0f}k" if value < 999_500 else ">1M"


def heat_map(
    samples: Sequence[Sample],
    methods: Sequence[str],
    lengths: Sequence[int],
    heads: Sequence[str],
    title: str,
    path: Path,
) -> None:
    """A PNG with one panel a method: how often the passkey was found, by length and by the depth it lay at."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.colors import LinearSegmentedColormap

    depths = sorted({sample.depth for sample in samples if sample.depth is not None})
    colours = LinearSegmentedColormap.from_list("found", ["#d9553f", "#f2d9a0", "#2a8c82"]).with_extremes(bad="#e4e4e4")
    columns = min(5, len(methods))
    rows = math.ceil(len(methods) / columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(2.3 * columns + 1, 2.1 * rows + 1.1),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    image = None
    for axis, method in zip(axes.flat, methods, strict=False):
        image = axis.imshow(_grid(samples, method, lengths, depths), cmap=colours, vmin=0, vmax=1, aspect="auto")
        axis.set_title(method, fontsize=10, fontweight="bold" if method == "stock" else "normal")
        axis.set_xticks(range(len(lengths)), heads, fontsize=8)
        axis.set_yticks(range(len(depths)), [f"{depth:.0%}" for depth in depths], fontsize=8)
        axis.set_xticks([n - 0.5 for n in range(1, len(lengths))], minor=True)
        axis.set_yticks([n - 0.5 for n in range(1, len(depths))], minor=True)
        axis.grid(which="minor", color="white", linewidth=2)
        axis.tick_params(which="both", length=0)
        axis.spines[:].set_visible(False)
    for axis in axes.flat[len(methods) :]:
        axis.set_visible(False)
    figure.suptitle(title, fontsize=11)
    figure.supxlabel("length, in windows of the model", fontsize=9)
    figure.supylabel("depth of the passkey", fontsize=9)
    if image is not None:
        figure.colorbar(image, ax=axes, shrink=0.7, label="passkeys found", format="{x:.0%}")
    save_figure(figure, path, dpi=150)


def _grid(samples: Sequence[Sample], method: str, lengths: Sequence[int], depths: Sequence[float]) -> list[list[float]]:
    """Share of passkeys found, by depth and length; NaN where nothing was measured."""

    def share(depth: float, length: int) -> float:
        scores = [
            sample.correct
            for sample in samples
            if (sample.method, sample.length, sample.depth) == (method, length, depth) and sample.error is None
        ]
        return sum(scores) / len(scores) if scores else math.nan

    return [[share(depth, length) for length in lengths] for depth in depths]
