"""A picture of a table: a line for each row over its columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from longspan.files import save_figure
from longspan_eval.reproduce.run import Outcome

_COLOURS = ("#8a8f94", "#d9553f", "#17736b", "#c98a1b", "#3b6fb6", "#7b4fa3", "#5f8f3a")


def draw(outcomes: Sequence[Outcome], title: str, path: Path) -> bool:
    """A PNG of shares by row and column, with their 95% intervals; whether there was anything to draw."""
    rows = list(dict.fromkeys(one.cell.row for one in outcomes))
    columns = list(dict.fromkeys(one.cell.column for one in outcomes))
    found = {
        (one.cell.row, columns.index(one.cell.column)): one.figure
        for one in outcomes
        if one.figure is not None and one.figure.unit == "share" and not math.isnan(one.figure.value)
    }
    if not found:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(max(0.9 * len(columns) + 3.6, 6.4), 3.6), layout="constrained")
    for n, row in enumerate(rows):
        points = [(x, found[row, x]) for x in range(len(columns)) if (row, x) in found]
        if not points:
            continue
        across = [x + 0.05 * (n - (len(rows) - 1) / 2) for x, _ in points]  # beside each other where they coincide
        values = [one.value for _, one in points]
        low = [max(one.value - (one.interval or (one.value, 0.0))[0], 0.0) for _, one in points]
        high = [max((one.interval or (0.0, one.value))[1] - one.value, 0.0) for _, one in points]
        axis.errorbar(
            across, values, yerr=[low, high], label=row, color=_COLOURS[n % len(_COLOURS)], marker="o", markersize=4,
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
    axis.set_xlabel("tokens", fontsize=8)
    save_figure(figure, path, dpi=150)
    return True
