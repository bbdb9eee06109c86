"""One figure of a table, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Unit = Literal["score", "share", "count", "perplexity", "ratio", "seconds", "bytes", "number", "text"]


@dataclass(frozen=True)
class Figure:
    """One figure of a table.

    Attributes:
        value: NaN if there is none, or if it is a text.
        unit: what it is: a mean score or a share of 0 to 1, a share to be shown as a count, a perplexity, a ratio of
            perplexities, seconds, bytes, another number, or a text.
        n: samples it is of (of a ratio: pairs); 0 for what is computed.
        interval: its 95% interval, as ``longspan_eval.interval`` has it: Wilson's for scores and shares, else Student's
            (for perplexities, of the blocks' mean losses); None for medians, and for a single prompt or block.
        text: what is shown instead of the number.
        baseline: of a ratio: the perplexity that it is a ratio to.
        blocks: of a perplexity: how many groups of windows without a common token its ``n`` windows are, which its
            interval is over; 0 of others.
        measured, planned: samples that there are, and that the cell asks for; both 0 for what is computed.
        reason: why there is no figure, else None.
        brief: the reason in a few words, for the table; made of the reason if it is empty.
    """

    value: float
    unit: Unit
    n: int = 0
    interval: tuple[float, float] | None = None
    text: str = ""
    baseline: float = math.nan
    blocks: int = 0
    measured: int = 0
    planned: int = 0
    reason: str | None = None
    brief: str = ""

    @property
    def unfinished(self) -> bool:
        """Whether samples are missing, and nothing says that none will come."""
        return self.measured < self.planned and self.reason is None

    @property
    def mark(self) -> str | None:
        """The mark of a cell without a figure, a word or a few; None for one that has a figure."""
        if self.reason is not None:
            return self.brief or _first_word(self.reason)
        if self.text or not math.isnan(self.value):
            return None
        return "·" if self.unfinished else "-"

    def __str__(self) -> str:
        """As a table has it; an ellipsis says that samples are missing."""
        return self.mark or _WRITTEN[self.unit](self) + (" …" if self.unfinished else "")


def wilson(found: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a rate, 95% unless ``z`` says otherwise.

    ``found`` may also be a sum of scores in 0..1. Those vary less than answers that are right or wrong do at the same
    mean, so the interval is then too wide, if anything.
    """
    if n == 0:
        return 0.0, 1.0
    rate, spread = found / n, z * z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = z * math.sqrt(rate * (1 - rate) / n + spread / (4 * n)) / (1 + spread)
    return max(centre - half, 0.0), min(centre + half, 1.0)


# How figures are written


def short(value: float) -> str:
    """A positive number in at most four or five characters: 9.8, 134, 2.1k."""
    if value < 99.95:
        return f"{value:.1f}"
    if value < 999.5:
        return f"{value:.0f}"
    if value < 999_500:
        return f"{value / 1000:.1f}k" if value < 99_950 else f"{value / 1000:.0f}k"
    return ">1M"


def as_perplexity(value: float) -> str:
    """``26.14``, ``165.2``, ``3,561`` or ``2.1e+07``."""
    if value < 1e6:
        return f"{value:,.{2 if value < 100 else 1 if value < 1000 else 0}f}"
    return f"{value:.1e}"


def as_bytes(size: float) -> str:
    """``42.3 GB``, in the decimal units that the papers use."""
    for factor, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(size) >= factor:
            return f"{size / factor:.3g} {name}"
    return f"{size:.0f} B"


def change(figure: Figure) -> str:
    """A ratio as a change: ``+1.3% ± 0.4``, or ``x26`` if that is plainer."""
    if figure.value >= 2:
        return f"x{short(figure.value)}"
    low, high = figure.interval or (0.0, math.inf)
    spread = "" if math.isinf(high) else f" ± {50 * (high - low):.1f}"
    return f"{100 * (figure.value - 1):+.1f}%{spread}"


def three_digits(value: float) -> str:
    """A perplexity in three digits at least: near 1 two decimals say nothing."""
    return f"{value:.3f}" if value < 2 else f"{value:.2f}" if value < 9.995 else short(value)


def _score(figure: Figure) -> str:
    low, high = figure.interval or (math.nan, math.nan)
    return f"{100 * figure.value:.1f} ({100 * low:.1f}-{100 * high:.1f}) n={figure.n}"


def _share(figure: Figure) -> str:
    if figure.interval is None:
        return f"{100 * figure.value:.{1 if figure.value >= 0.1 else 2}f}%{_of_n(figure)}"
    low, high = figure.interval
    return f"{100 * figure.value:.0f}% ({100 * low:.0f}-{100 * high:.0f}){_of_n(figure)}"


def _count(figure: Figure) -> str:
    low, high = figure.interval or (math.nan, math.nan)
    return f"{round(figure.value * figure.n)}/{figure.n} ({100 * low:.0f}-{100 * high:.0f})"


def _perplexity(figure: Figure) -> str:
    between = "" if figure.interval is None else f" ({'-'.join(map(as_perplexity, figure.interval))})"
    return f"{as_perplexity(figure.value)}{between}{_of_n(figure)}"


def _number(figure: Figure) -> str:
    shown = f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.3g}"
    if figure.interval is None:
        return shown
    return f"{shown} ({'-'.join(f'{x:.3g}' for x in figure.interval)}){_of_n(figure)}"


def _of_n(figure: Figure) -> str:
    return f" n={figure.n}" if figure.n else ""


_WRITTEN: dict[Unit, Callable[[Figure], str]] = {
    "score": _score,
    "share": _share,
    "count": _count,
    "perplexity": _perplexity,
    "ratio": lambda figure: f"{three_digits(figure.value * figure.baseline)} ({change(figure)})",
    "seconds": lambda figure: f"{1000 * figure.value:.3g} ms" if figure.value < 1 else f"{figure.value:.3g} s",
    "bytes": lambda figure: as_bytes(figure.value),
    "number": _number,
    "text": lambda figure: figure.text,
}


def _first_word(reason: str) -> str:
    if reason == "out of memory":
        return reason
    return "skipped" if reason.startswith("skipped:") else "error"
