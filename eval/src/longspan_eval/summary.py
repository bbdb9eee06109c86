"""Cells of a finished or growing table: rates with their intervals, and perplexity against that in the window.

Perplexity is compared like with like. Prompts of one seed end in the same text at every length, so the scored tokens
of a prompt are those of the in-window prompt of its seed, its *baseline*: the stock model at one window, the passkey
before all of the text. Prompts whose passkey lies among the scored tokens (which happens near the window only) are left
out, as not all of their tokens are the same. What remains differs in nothing but what came before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from longspan_eval.plan import Cell
from longspan_eval.results import Sample, wilson
from longspan_eval.scored_passkey import TARGETS


@dataclass(frozen=True)
class Summary:
    """What is known of one cell.

    Attributes:
        row: its row's label.
        multiple, length, filler: where it stands.
        planned, n, found: prompts asked for, answered, and answered right.
        interval: the 95% Wilson interval of ``found / n``.
        perplexity: ``exp`` of the mean loss over the scored tokens of its own prompts; NaN while there is none.
        compared: prompts that ``ratio`` is over.
        ratio: perplexity over that of the same tokens in the window, stock; NaN while there is none.
        ratio_interval: its 95% interval (normal, over the prompts' mean losses).
        in_window: the perplexity of the baseline over all of its prompts.
        seconds: a prompt and its answer, on average.
        error: why there is no result, else None.
    """

    row: str
    multiple: float
    length: int
    filler: str
    planned: int
    n: int
    found: int
    interval: tuple[float, float]
    perplexity: float
    compared: int
    ratio: float
    ratio_interval: tuple[float, float]
    in_window: float
    seconds: float
    error: str | None

    @property
    def rate(self) -> float:
        return self.found / self.n if self.n else math.nan

    @property
    def comparable(self) -> float:
        """The perplexity that cells can be compared by, whichever and how many prompts each had: ratio × in_window."""
        return self.ratio * self.in_window


def summarise(cell: Cell, samples: Mapping[str, Sample], baseline: Cell) -> Summary:
    """The summary of a cell from what has been measured.

    Args:
        samples: by key.
        baseline: the stock model's prompts in the window with the same filler and seeds.
    """
    mine = [samples[ask.key] for ask in cell.asks if ask.key in samples]
    error = next((sample.error for sample in mine if sample.error is not None), None)
    if error is not None:
        mine = []
    own = _losses(mine)
    base = _losses([samples[ask.key] for ask in baseline.asks if ask.key in samples])
    pairs = [own[seed] - base[seed] for seed in own.keys() & base.keys()]
    found = round(sum(sample.correct for sample in mine))
    return Summary(
        row=cell.row.label,
        multiple=cell.multiple,
        length=cell.length,
        filler=cell.filler,
        planned=len(cell.asks),
        n=len(mine),
        found=found,
        interval=wilson(found, len(mine)),
        perplexity=_exp(fmean(own.values())) if own else math.nan,
        compared=len(pairs),
        ratio=_exp(fmean(pairs)) if pairs else math.nan,
        ratio_interval=_interval(pairs),
        in_window=_exp(fmean(base.values())) if base else math.nan,
        seconds=fmean(sample.seconds for sample in mine) if mine else math.nan,
        error=error,
    )


def _losses(samples: Sequence[Sample]) -> dict[int, float]:
    """The mean loss by seed of the samples that scored all of the end of their text."""
    return {s.seed: s.loss for s in samples if s.error is None and s.scored == TARGETS}


def _interval(differences: Sequence[float]) -> tuple[float, float]:
    if len(differences) < 2:
        return 0.0, math.inf
    half = 1.96 * stdev(differences) / math.sqrt(len(differences))
    return _exp(fmean(differences) - half), _exp(fmean(differences) + half)


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf
