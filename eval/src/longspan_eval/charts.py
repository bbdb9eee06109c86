"""Pictures of a run: scores by row and length for each task, and by length and depth for each row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan.files import save_figure
from longspan_eval.outcome import AtDepth, Outcome

LABELS = {"score": "score", "perplexity": "lowest / perplexity"}  # what the colours mean

Grid = Mapping[tuple[str, str, int], Outcome]  # by task, row, length


def overview(
    grid: Grid,
    tasks: Sequence[str],
    rows: Sequence[str],
    lengths: Sequence[int],
    heads: Sequence[str],
    title: str,
    path: Path,
) -> None:
    """A PNG with a panel for each task: a tile for each row and length, with the score or why there is none.

    A perplexity has the colour of the lowest of its panel over itself: 1 is the best there is, one half twice as much.
    """
    across = min(3, len(tasks))
    down = math.ceil(len(tasks) / across)
    wide = max(len(row) for row in rows)
    panel = max(0.62 * len(lengths), 0.085 * max(map(len, tasks))) + 0.4  # as wide as its title, too
    size = (across * panel + 0.075 * wide + 1.2, down * (0.3 * len(rows) + 0.6) + 0.7)
    plt, colours = _pyplot()
    figure, axes = plt.subplots(down, across, figsize=size, squeeze=False, sharey=True, layout="constrained")
    image = None
    for axis, task in zip(axes.flat, tasks, strict=False):
        cells = [[grid[task, row, length] for length in lengths] for row in rows]
        image = _tiles(axis, _shades(cells), colours)
        for y, line in enumerate(cells):
            for x, cell in enumerate(line):
                axis.text(x, y, _word(cell) or _figure(cell), ha="center", va="center", fontsize=7)
        axis.set_title(task, fontsize=9, loc="left")
        _ticks(axis, heads, rows)
    kinds = {cell.measure for cell in grid.values()}
    _finish(
        figure, axes, len(tasks), image, title, path, ", ".join(LABELS[kind] for kind in sorted(kinds, reverse=True))
    )


def by_depth(
    grid: Grid, task: str, rows: Sequence[str], lengths: Sequence[int], heads: Sequence[str], title: str, path: Path
) -> None:
    """A PNG with a panel for each row: the score by length and by the depth that the answer lay at."""
    depths = max((grid[task, row, length].depths for row in rows for length in lengths), key=len)
    across = min(5, len(rows))
    down = math.ceil(len(rows) / across)
    panel = max(0.5 * len(lengths), 0.085 * max(map(len, rows))) + 0.4
    size = (across * panel + 2.0, down * (0.2 * len(depths) + 0.7) + 1.0)
    plt, colours = _pyplot()
    figure, axes = plt.subplots(down, across, figsize=size, squeeze=False, sharey=True, layout="constrained")
    image = None
    for axis, row in zip(axes.flat, rows, strict=False):
        cells = [grid[task, row, length] for length in lengths]
        image = _tiles(axis, [[cell.depths[y].score for cell in cells] for y in range(len(depths))], colours)
        for x, cell in enumerate(cells):
            word = _word(cell)
            if word is not None:
                axis.text(x, (len(depths) - 1) / 2, word, ha="center", va="center", fontsize=7, rotation=90)
                continue
            for y in (y for y, depth in enumerate(cell.depths) if not depth.n):
                axis.text(x, y, "·", ha="center", va="center", fontsize=7)
        axis.set_title(row, fontsize=9, loc="left")
        _ticks(axis, heads, [_depth(depth) for depth in depths])
    figure.supxlabel("tokens", fontsize=9)
    figure.supylabel("depth of the answer", fontsize=9)
    _finish(figure, axes, len(rows), image, title, path)


def _pyplot() -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("score", ["#d9553f", "#f2d9a0", "#2a8c82"])
    return plt, colours.with_extremes(bad="#e4e4e4")


def _tiles(axis: Any, scores: list[list[float]], colours: Any) -> Any:
    image = axis.imshow(scores, cmap=colours, vmin=0, vmax=1, aspect="auto")
    axis.set_xticks([n - 0.5 for n in range(1, len(scores[0]))], minor=True)
    axis.set_yticks([n - 0.5 for n in range(1, len(scores))], minor=True)
    axis.grid(which="minor", color="white", linewidth=1.5)
    axis.spines[:].set_visible(False)
    return image


def _ticks(axis: Any, across: Sequence[str], down: Sequence[str]) -> None:
    axis.set_xticks(range(len(across)), across, fontsize=7)
    axis.set_yticks(range(len(down)), down, fontsize=7)
    axis.tick_params(which="both", length=0)


def _finish(figure: Any, axes: Any, used: int, image: Any, title: str, path: Path, label: str = "score") -> None:
    for axis in axes.flat[used:]:
        axis.set_visible(False)
    figure.suptitle(title, fontsize=10)
    high = figure.get_size_inches()[1]
    bar = figure.colorbar(image, ax=axes, shrink=min(0.8, 2.5 / high), aspect=15, format="{x:.0%}")
    bar.set_label(label, fontsize=8)
    save_figure(figure, path, dpi=150)


def _shades(cells: Sequence[Sequence[Outcome]]) -> list[list[float]]:
    """A panel's tiles, 0 to 1; NaN for one without a score."""
    lowest = min(
        (cell.score for line in cells for cell in line if cell.measure == "perplexity" and cell.n), default=0.0
    )
    return [[lowest / cell.score if cell.measure == "perplexity" else cell.score for cell in line] for line in cells]


def _figure(cell: Outcome) -> str:
    """What a tile with a score says."""
    if cell.measure == "score":
        return f"{100 * cell.score:.0f}"
    if cell.score < 100:
        return f"{cell.score:.1f}"
    return f"{cell.score:.0f}" if cell.score < 10_000 else f"{cell.score:.0e}"


def _word(cell: Outcome) -> str | None:
    """What a tile without a score says."""
    return "oom" if cell.mark == "out of memory" else "skip" if cell.mark == "skipped" else cell.mark


def _depth(part: AtDepth) -> str:
    return f"{part.low:.0%}" if part.low == part.high else f"{100 * part.low:.0f}-{100 * part.high:.0f}%"
