"""What the best rows of the quality table have to reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longspan_eval.figure import Figure, change, wilson

SELECTING = ("longheads", "esa")  # the methods that the table is about

Pairs = Mapping[tuple[str, float, str], tuple[Figure, Figure]]  # found, ratio; by row, length in windows and filler


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


def judge(bar: Bar, rows: Mapping[str, str], fillers: Sequence[str], grid: Pairs) -> tuple[str, str]:
    """A bar in words, and whether the method's best row meets it; ``rows``: the method of each row."""
    at = f"{bar.method} at {bar.multiple:g}x over {bar.filler}"
    what = f"{at}: at least {bar.found:.0%} found" if bar.found is not None else f"{at}: perplexity within 3%"
    best = _best(bar.method, bar.multiple, rows, fillers, grid)
    found, ratio = (None, None) if best is None else grid.get((best, bar.multiple, bar.filler), (None, None))
    if found is None or ratio is None or not found.n:
        return what, "not measured"
    if bar.found is not None:
        return what, f"{verdict(found, bar.found)}, `{best}`"
    if ratio.n == 0 or bar.ratio is None:
        return what, "not measured"
    word = "met" if ratio.value <= bar.ratio else "missed"
    return what, f"**{word}**: {change(ratio)} over {ratio.n} prompts, `{best}`"


def verdict(found: Figure, least: float) -> str:
    """A share against a bar: ``met`` or ``missed``, with the figure and its interval."""
    right, n = round(found.value * found.n), found.n
    low, high = wilson(right, n)
    word = "met" if right / n >= least else "missed"
    return f"**{word}**: {right}/{n} = {right / n:.1%} (95% interval {low:.1%} to {high:.1%})"


def _best(method: str, multiple: float, rows: Mapping[str, str], fillers: Sequence[str], grid: Pairs) -> str | None:
    """Of the method's rows with most prompts, the one that finds the largest share at a length over all fillers.

    Few prompts say too little to be chosen by; of equal rows it is the least perplexed.
    """
    scored = []
    for row, name in rows.items():
        cells = [grid[key] for filler in fillers if (key := (row, multiple, filler)) in grid]
        if name == method and cells and (prompts := min(found.n for found, _ in cells)):
            share = sum(found.value for found, _ in cells)
            perplexed = sum(ratio.value * ratio.baseline for _, ratio in cells)
            scored.append((prompts, -share, perplexed, row))
    most = max((prompts for prompts, *_ in scored), default=0)
    return min(rest for prompts, *rest in scored if prompts == most)[-1] if scored else None
