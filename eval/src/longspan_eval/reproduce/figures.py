"""What samples say: how those of a cell become one figure, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median, stdev
from typing import Literal

from longspan_eval.perplexity import over_prompts
from longspan_eval.report import short
from longspan_eval.results import Sample, wilson

Unit = Literal["share", "perplexity", "seconds", "bytes", "number", "text"]


@dataclass(frozen=True)
class Figure:
    """One figure of a table.

    Attributes:
        value: NaN where there is none, or where it is a text.
        unit: what it is: a share of 0 to 1, a perplexity, seconds, bytes, another number, or a text.
        n: samples it is of; 0 for what is computed.
        interval: its 95% interval: Wilson's for mean scores, else a normal one of the prompts' means (for perplexities,
            of their mean losses); None for medians, and where one prompt has none.
        text: what is shown instead of the number.
    """

    value: float
    unit: Unit
    n: int = 0
    interval: tuple[float, float] | None = None
    text: str = ""

    def shown(self, planned: int = 0) -> str:
        """As a table has it; an ellipsis says that not all of ``planned`` samples are there."""
        more = " …" if self.n < planned else ""
        if self.unit == "text":
            return self.text + more
        if math.isnan(self.value):
            return "·" if self.n < planned else "-"
        return self._number() + more

    def _number(self) -> str:
        more = f" n={self.n}" if self.n else ""
        if self.unit == "share":
            if self.interval is None:
                return f"{100 * self.value:.{1 if self.value >= 0.1 else 2}f}%{more}"
            low, high = self.interval
            return f"{100 * self.value:.0f}% ({100 * low:.0f}-{100 * high:.0f}){more}"
        if self.unit == "perplexity":
            shown = _perplexity_text(self.value)
            return shown + (f" ({'-'.join(map(_perplexity_text, self.interval))})" if self.interval else "") + more
        if self.unit == "seconds":
            return f"{1000 * self.value:.3g} ms" if self.value < 1 else f"{self.value:.3g} s"
        if self.unit == "bytes":
            return written_bytes(self.value)
        shown = f"{self.value:,.0f}" if self.value >= 1000 else f"{self.value:.3g}"
        return shown if self.interval is None else f"{shown} ({'-'.join(f'{x:.3g}' for x in self.interval)}){more}"


def _perplexity_text(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.2f}" if value < 99.995 else short(value)


def written_bytes(size: float) -> str:
    """``42.3 GB``, in the decimal units that the papers use."""
    for factor, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(size) >= factor:
            return f"{size / factor:.3g} {name}"
    return f"{size:.0f} B"


@dataclass(frozen=True)
class Show:
    """How samples become a figure: its unit, and the function. ``n`` is how many of the samples have it."""

    unit: Unit
    reduce: Callable[[Sequence[Sample]], Figure]


def _found(samples: Sequence[Sample], where: tuple[str, float] | None = None) -> Figure:
    if where is not None:
        name, wanted = where
        samples = [sample for sample in samples if sample.figures.get(name) == wanted]
    total, n = math.fsum(sample.correct for sample in samples), len(samples)
    return Figure(total / n if n else math.nan, "share", n, wilson(total, n))


def _perplexity(samples: Sequence[Sample]) -> Figure:
    value, interval = over_prompts([sample.loss for sample in samples])
    return Figure(value, "perplexity", len(samples), interval if len(samples) > 1 else None)


def _of(name: str, unit: Unit, middle: bool, samples: Sequence[Sample]) -> Figure:
    values = [sample.figures[name] for sample in samples if not math.isnan(sample.figures.get(name, math.nan))]
    if not values:
        return Figure(math.nan, unit)
    if middle or len(values) == 1:
        return Figure(median(values), unit, len(values))
    mean, half = fmean(values), 1.96 * stdev(values) / math.sqrt(len(values))
    low, high = mean - half, mean + half
    return Figure(mean, unit, len(values), (max(low, 0.0), min(high, 1.0)) if unit == "share" else (low, high))


def _answers(samples: Sequence[Sample]) -> Figure:
    said = " / ".join(" ".join(sample.prediction.split()) or "(nothing)" for sample in samples)
    return Figure(math.nan, "text", len(samples), text=said.replace("|", "\\|"))


FOUND = Show("share", _found)
PERPLEXITY = Show("perplexity", _perplexity)
ANSWERS = Show("text", _answers)


def found_where(name: str, value: float) -> Show:
    """The score of the samples whose figure ``name`` is ``value``."""
    return Show("share", partial(_found, where=(name, value)))


def _against(name: str, base: str, samples: Sequence[Sample]) -> Figure:
    rounds: dict[int, dict[bool, float]] = {}
    for sample in samples:
        rounds.setdefault(sample.seed, {})[sample.task == base] = sample.figures.get(name, math.nan)
    ratios = [pair[False] / pair[True] for pair in rounds.values() if len(pair) == 2]
    ratios = [ratio for ratio in ratios if not math.isnan(ratio)]
    return Figure(median(ratios) if ratios else math.nan, "number", len(ratios))


def against(name: str, base: str) -> Show:
    """The median over rounds of a figure over that of the samples of the task ``base`` in the same round.

    What disturbs a machine disturbs both, so ratios hold where times do not.
    """
    return Show("number", partial(_against, name, base))


def mean_of(name: str, unit: Unit) -> Show:
    """The mean of a figure over the samples that have it, with its interval."""
    return Show(unit, partial(_of, name, unit, False))


def median_of(name: str, unit: Unit) -> Show:
    """The median of a figure over the samples that have it; for times, of which single ones are disturbed."""
    return Show(unit, partial(_of, name, unit, True))
