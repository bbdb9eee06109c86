"""Cells of any task, measured: the mean score with its interval, by depth too, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from longspan_eval.perplexity import over_prompts
from longspan_eval.plan import Cell
from longspan_eval.results import Sample, wilson
from longspan_eval.task import Measure

BINS = 5  # where depths were left to the seeds, so many parts of the text are told apart


@dataclass(frozen=True)
class AtDepth:
    """The score of the prompts whose answer lay from ``low`` to ``high``; the two are equal where a depth was asked."""

    low: float
    high: float
    n: int
    score: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Outcome:
    """What is known of one cell.

    Attributes:
        task, row, multiple, length: where it stands.
        planned, n: prompts asked for, and answered.
        score: the mean of their scores, 0 to 1, or the perplexity of all their scored tokens; NaN while there is none.
        interval: its 95% interval: Wilson's, or for a perplexity ``exp`` of the normal one of the prompts' mean losses.
        seconds: a prompt and its answer, on average.
        tokens: of a prompt, on average.
        depths: the score by depth; empty where the task has none.
        error: why there is no result, else None.
        measure: what the score is.
    """

    task: str
    row: str
    multiple: float
    length: int
    planned: int
    n: int
    score: float
    interval: tuple[float, float]
    seconds: float
    tokens: float
    depths: tuple[AtDepth, ...]
    error: str | None
    measure: Measure = "score"

    @property
    def mark(self) -> str | None:
        """One word for a cell without a score: why it has none. None for a cell that has one."""
        if self.error is not None:
            return "out of memory" if self.error == "out of memory" else first_word(self.error)
        return None if self.n else "·"


def outcome(cell: Cell, samples: Mapping[str, Sample], skipped: str | None = None) -> Outcome:
    """The outcome of a cell from what has been measured; a prompt that failed makes the whole cell an error."""
    mine = [samples[ask.key] for ask in cell.asks if ask.key in samples]
    error = skipped or next((sample.error for sample in mine if sample.error is not None), None)
    if error is not None:
        mine = []
    score, interval = _mean(mine) if cell.task.measure == "score" else over_prompts([one.loss for one in mine])
    return Outcome(
        task=cell.task.name,
        row=cell.row.label,
        multiple=cell.multiple,
        length=cell.length,
        planned=len(cell.asks),
        n=len(mine),
        score=score,
        interval=interval,
        seconds=fmean(sample.seconds for sample in mine) if mine else math.nan,
        tokens=fmean(sample.tokens for sample in mine) if mine else math.nan,
        depths=_by_depth(cell, mine),
        error=error,
        measure=cell.task.measure,
    )


def as_perplexity(value: float) -> str:
    """``26.14``, ``165.2``, ``3,561`` or ``2.1e+07``."""
    if value < 1e6:
        return f"{value:,.{2 if value < 100 else 1 if value < 1000 else 0}f}"
    return f"{value:.1e}"


def _by_depth(cell: Cell, samples: Sequence[Sample]) -> tuple[AtDepth, ...]:
    if not cell.task.at_depths:
        return ()
    asked = sorted({ask.depth for ask in cell.asks if ask.depth is not None})
    edges = [(n / BINS, (n + 1) / BINS) for n in range(BINS)]
    made = []
    for low, high in [(depth, depth) for depth in asked] or edges:
        # The last part has its end as well; where depths were asked, each is a part of its own.
        here = [s for s in samples if s.depth is not None and (low <= s.depth < high or s.depth == high in (low, 1.0))]
        score, interval = _mean(here)
        made.append(AtDepth(low, high, len(here), score, interval))
    return tuple(made)


def _mean(samples: Sequence[Sample]) -> tuple[float, tuple[float, float]]:
    total = math.fsum(sample.correct for sample in samples)
    return (total / len(samples) if samples else math.nan), wilson(total, len(samples))


def first_word(error: str) -> str:
    """Of an error, for a table."""
    return "skipped" if error.startswith("skipped:") else "error"
