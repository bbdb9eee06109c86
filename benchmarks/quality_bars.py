"""What the best rows of the quality table have to reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longspan_eval import tables
from longspan_eval.rows import Row
from longspan_eval.summary import Summary

SELECTING = ("longheads", "esa")  # the methods that the table is about

Summaries = Mapping[tuple[str, float, str], Summary]  # by row, length in windows and filler


@dataclass(frozen=True)
class Bar:
    """What the best row of a method has to reach at a length: a share of passkeys, or a ratio of perplexities."""

    method: str
    multiple: float
    filler: str
    found: float | None = None
    ratio: float | None = None


BARS = (
    *(
        bar
        for method in SELECTING
        for bar in (
            Bar(method, 16, "noise", found=0.95),
            Bar(method, 16, "prose", found=0.90),
            Bar(method, 16, "noise", ratio=1.03),
            Bar(method, 16, "prose", ratio=1.03),
        )
    ),
    Bar("longheads", 64, "noise", found=0.80),
    Bar("longheads", 64, "prose", found=0.80),
    Bar("dca", 4, "noise", found=0.90),
    Bar("dca", 4, "prose", found=0.80),
)


def judge(bar: Bar, rows: Sequence[Row], fillers: Sequence[str], grid: Summaries) -> tuple[str, str]:
    """A bar in words, and whether the method's best row meets it."""
    at = f"{bar.method} at {bar.multiple:g}x over {bar.filler}"
    what = f"{at}: at least {bar.found:.0%} found" if bar.found is not None else f"{at}: perplexity within 3%"
    best = _best(bar.method, bar.multiple, rows, fillers, grid)
    cell = None if best is None else grid.get((best, bar.multiple, bar.filler))
    if cell is None or not cell.n:
        return what, "not measured"
    if bar.found is not None:
        return what, f"{tables.verdict(cell.found, cell.n, bar.found)}, `{best}`"
    if cell.compared == 0 or bar.ratio is None:
        return what, "not measured"
    word = "met" if cell.ratio <= bar.ratio else "missed"
    return what, f"**{word}**: {tables.change(cell)} over {cell.compared} prompts, `{best}`"


def _best(method: str, multiple: float, rows: Sequence[Row], fillers: Sequence[str], grid: Summaries) -> str | None:
    """Of the method's rows that were asked most, the one that finds the largest share at a length over all fillers.

    Few prompts say too little to be chosen by; of equal rows it is the least perplexed.
    """
    scored = []
    for row in rows:
        cells = [grid[key] for filler in fillers if (key := (row.label, multiple, filler)) in grid]
        if row.name == method and cells and (asked := min(cell.n for cell in cells)):
            found, perplexed = sum(cell.rate for cell in cells), sum(cell.comparable for cell in cells)
            scored.append((asked, -found, perplexed, row.label))
    most = max((asked for asked, *_ in scored), default=0)
    return min(rest for asked, *rest in scored if asked == most)[-1] if scored else None
