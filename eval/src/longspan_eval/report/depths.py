"""Scores by depth: a cell's, and a row's as tiles by depth and length."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from longspan_eval.cell import Cell
from longspan_eval.figure import Figure
from longspan_eval.measure import TaskPrompt
from longspan_eval.report.charts import Panel, on_tile
from longspan_eval.sample import Sample
from longspan_eval.schedule import CellPlan, Samples

BINS = 5  # if depths were left to the seeds, so many parts of the text are told apart


def by_depth(cell: Cell, figure: Figure, samples: Sequence[Sample]) -> list[tuple[float, float, Figure]]:
    """A cell's score by depth: from, to, and the figure; from and to are equal if depths were asked for.

    Nothing if its task has no depths, or nothing is measured for it.
    """
    prompts = [measure for measure in cell.measures if isinstance(measure, TaskPrompt)]
    if cell.reduce is None or not prompts or not prompts[0].task.at_depths:
        return []
    samples = samples if figure.reason is None else []
    given = sorted({prompt.depth for prompt in prompts if prompt.depth is not None})
    parts = []
    for low, high in [(depth, depth) for depth in given] or [(n / BINS, (n + 1) / BINS) for n in range(BINS)]:
        # The last part has its end as well; if depths were given, each is a part of its own.
        own = [s for s in samples if s.depth is not None and (low <= s.depth < high or s.depth == high in (low, 1.0))]
        parts.append((low, high, cell.reduce(own, ())))
    return parts


def depth_panels(
    plan: CellPlan, samples: Samples, shown: Callable[[Cell], bool], head: Callable[[Cell], str]
) -> list[Panel]:
    """A panel for each row: tiles by depth and length, and over a length without a figure the reason.

    Args:
        shown: whether a cell is in a panel.
        head: how the length of a cell is called.
    """
    rows: dict[str, list[tuple[Cell, Figure, list[Sample]]]] = {}
    for n, (cell, figure) in enumerate(plan.figures(samples)):
        if shown(cell):
            rows.setdefault(cell.row, []).append((cell, figure, plan.measured(n, samples)))
    panels = []
    for row, own in rows.items():
        words = {x: on_tile(figure) for x, (_, figure, _) in enumerate(own) if figure.mark is not None}
        columns = [by_depth(*one) for one in own]
        depths = [_depth(low, high) for low, high, _ in max(columns, key=len)]
        parts = [[column[n][2] if column else None for column in columns] for n in range(len(depths))]
        shades = [[math.nan if part is None else part.value for part in line] for line in parts]
        texts = [["" if x in words or part is None or part.n else "·" for x, part in enumerate(line)] for line in parts]
        panels.append(Panel(row, depths, [head(cell) for cell, _, _ in own], shades, texts, words))
    return panels


def _depth(low: float, high: float) -> str:
    return f"{low:.0%}" if low == high else f"{100 * low:.0f}-{100 * high:.0f}%"
