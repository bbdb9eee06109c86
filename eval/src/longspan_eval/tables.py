"""A table to read at once: Markdown, and a picture of the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from longspan.files import save_figure
from longspan_eval.report import short
from longspan_eval.results import wilson
from longspan_eval.summary import Summary

Grid = Mapping[tuple[str, float, str], Summary]  # by row, multiple, filler


def found_table(grid: Grid, rows: Sequence[str], multiples: Sequence[float], filler: str) -> str:
    """Passkeys found over one filler, as Markdown: ``196/200 (95-99)`` is 98%, its 95% interval 95% to 99%."""
    return _table(grid, rows, multiples, filler, _found)


def perplexity_table(grid: Grid, rows: Sequence[str], multiples: Sequence[float], filler: str) -> str:
    """``Summary.comparable`` over one filler and how far it is from the same tokens in the window (± 95%)."""
    return _table(grid, rows, multiples, filler, _perplexity)


def notes(grid: Grid) -> list[str]:
    """A line for each error, and one if cells are unfinished."""
    lines = []
    for cell in grid.values():
        if cell.error is not None:
            lines.append(f"- `{cell.row}` at {cell.multiple:g}x over {cell.filler}: {cell.error}")
    unfinished = sum(cell.n < cell.planned and cell.error is None for cell in grid.values())
    if unfinished:
        lines.append(f"- {unfinished} of {len(grid)} cells are unfinished: `·` has no prompt yet, `…` not all of them.")
    return lines


def _table(
    grid: Grid, rows: Sequence[str], multiples: Sequence[float], filler: str, text: Callable[[Summary], str]
) -> str:
    lines = ["| | " + " | ".join(f"{multiple:g}x" for multiple in multiples) + " |"]
    lines.append("| --- |" + " ---: |" * len(multiples))
    for row in rows:
        cells = [grid.get((row, multiple, filler)) for multiple in multiples]
        lines.append(f"| `{row}` | " + " | ".join(" " if cell is None else text(cell) for cell in cells) + " |")
    return "\n".join(lines)


def _found(cell: Summary) -> str:
    if cell.error is not None:
        return _failure(cell.error)
    if not cell.n:
        return "·"
    low, high = cell.interval
    more = " …" if cell.n < cell.planned else ""
    return f"{cell.found}/{cell.n} ({100 * low:.0f}-{100 * high:.0f}){more}"


def _perplexity(cell: Summary) -> str:
    if cell.error is not None:
        return _failure(cell.error)
    if math.isnan(cell.ratio):
        return "·"
    more = " …" if cell.n < cell.planned else ""
    return f"{number(cell.comparable)} ({change(cell)}){more}"


def number(value: float) -> str:
    """Three digits at least: near 1 two decimals say nothing."""
    return f"{value:.3f}" if value < 2 else f"{value:.2f}" if value < 9.995 else short(value)


def change(cell: Summary) -> str:
    """The ratio to the perplexity in the window, as a change: ``+1.3% ± 0.4``, or ``x26`` where that is plainer."""
    if cell.ratio >= 2:
        return f"x{short(cell.ratio)}"
    low, high = cell.ratio_interval
    spread = "" if math.isinf(high) else f" ± {50 * (high - low):.1f}"
    return f"{100 * (cell.ratio - 1):+.1f}%{spread}"


def _failure(error: str) -> str:
    return "out of memory" if error == "out of memory" else "error"


def picture(
    grid: Grid, rows: Sequence[str], multiples: Sequence[float], fillers: Sequence[str], title: str, path: Path
) -> None:
    """A PNG: a tile for each cell, passkeys found over each filler and then perplexity against the window's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.colors import LinearSegmentedColormap

    good = LinearSegmentedColormap.from_list("found", ["#d9553f", "#f2d9a0", "#2a8c82"]).with_extremes(bad="#e4e4e4")
    panels = [(f"passkeys found over {filler}", filler, False) for filler in fillers]
    panels += [(f"perplexity over {filler}, against the window's", filler, True) for filler in fillers]
    across = min(2, len(fillers))
    down = math.ceil(len(panels) / across)
    size = (across * (1.05 * len(multiples) + 0.6) + 2.6, down * (0.34 * len(rows) + 1.1) + 0.6)
    figure, axes = plt.subplots(down, across, figsize=size, squeeze=False, sharey=True, layout="constrained")
    for axis, (name, filler, surprise) in zip(axes.flat, panels, strict=True):
        cells = [[grid.get((row, multiple, filler)) for multiple in multiples] for row in rows]
        shade = _surprise_shade if surprise else _found_shade
        axis.imshow([[shade(c) for c in line] for line in cells], cmap=good, vmin=0, vmax=1, aspect="auto")
        for y, line in enumerate(cells):
            for x, cell in enumerate(line):
                axis.text(x, y, _tile(cell, surprise), ha="center", va="center", fontsize=8)
        axis.set_title(name, fontsize=10, loc="left")
        axis.set_xticks(range(len(multiples)), [f"{multiple:g}x" for multiple in multiples], fontsize=8)
        axis.set_yticks(range(len(rows)), rows, fontsize=8)
        axis.set_xticks([n - 0.5 for n in range(1, len(multiples))], minor=True)
        axis.set_yticks([n - 0.5 for n in range(1, len(rows))], minor=True)
        axis.grid(which="minor", color="white", linewidth=2)
        axis.tick_params(which="both", length=0)
        axis.spines[:].set_visible(False)
    figure.suptitle(title, fontsize=11)
    save_figure(figure, path, dpi=130)


def _found_shade(cell: Summary | None) -> float:
    return math.nan if cell is None else cell.rate


def _surprise_shade(cell: Summary | None) -> float:
    """1 at the window's perplexity or less, 0 at twice that or more."""
    return math.nan if cell is None or math.isnan(cell.ratio) else min(max(2 - cell.ratio, 0.0), 1.0)


def _tile(cell: Summary | None, surprise: bool) -> str:
    if cell is None:
        return ""
    if cell.error is not None:
        return "error" if cell.error != "out of memory" else "oom"
    if surprise:
        return "·" if math.isnan(cell.ratio) else change(cell).partition(" ±")[0]
    return f"{cell.found}/{cell.n}" if cell.n else "·"


def verdict(found: int, n: int, least: float) -> str:
    """A rate against a bar: ``met`` or ``missed``, with the figure and its interval."""
    if not n:
        return "not measured"
    low, high = wilson(found, n)
    word = "met" if found / n >= least else "missed"
    return f"**{word}**: {found}/{n} = {found / n:.1%} (95% interval {low:.1%} to {high:.1%})"
