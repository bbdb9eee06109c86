"""How the samples of a cell become its figure.

A reducer takes the samples of a cell, and those that it is compared with. Of no samples it makes a figure of its unit
without a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, median

from longspan_eval.figure import Figure, Unit, wilson
from longspan_eval.interval import half_width, of_groups, of_shares
from longspan_eval.perplexity import over_prompts
from longspan_eval.sample import Sample
from longspan_eval.task import Record
from longspan_eval.windows import blocks, scored_span

Reduce = Callable[[Sequence[Sample], Sequence[Sample]], Figure]


def mean_score(samples: Sequence[Sample], unit: Unit) -> Figure:
    """The mean score, with Wilson's interval."""
    total, n = math.fsum(sample.correct for sample in samples), len(samples)
    return Figure(total / n if n else math.nan, unit, n, wilson(total, n))


def score(samples: Sequence[Sample], base: Sequence[Sample] = ()) -> Figure:
    """The mean score, written in percent: ``98.0 (89.5-99.6) n=50``."""
    return mean_score(samples, "score")


def found(samples: Sequence[Sample], base: Sequence[Sample] = ()) -> Figure:
    """The mean score, written as a share: ``98% (90-100) n=50``."""
    return mean_score(samples, "share")


def count(samples: Sequence[Sample], base: Sequence[Sample] = ()) -> Figure:
    """How many answers are right: ``196/200 (95-99)``."""
    return mean_score(samples, "count")


def mean_of_tasks(samples: Sequence[Sample], base: Sequence[Sample] = ()) -> Figure:
    """The mean of the mean scores of each task and length, as benchmarks average, however many samples each has."""
    groups: dict[tuple[str, int], list[float]] = {}
    for one in samples:
        groups.setdefault((one.task, one.length), []).append(one.correct)
    if not groups:
        return Figure(math.nan, "share")
    scores = list(groups.values())
    return Figure(fmean(map(fmean, scores)), "share", len(samples), of_groups(scores))


def found_where(name: str, value: float) -> Reduce:
    """The mean score of the samples whose figure ``name`` is ``value``."""

    def reduce(samples: Sequence[Sample], base: Sequence[Sample]) -> Figure:
        return found([one for one in samples if one.figures.get(name) == value])

    return reduce


def perplexity(samples: Sequence[Sample], base: Sequence[Sample] = ()) -> Figure:
    """``exp`` of the mean loss of all scored tokens of prompts, each of a text of its own."""
    return _perplexity(samples, range(len(samples)))


def window_perplexity(windows: Mapping[int, Record], length: int) -> Reduce:
    """The same of windows, whose interval is over blocks: windows that score the same tokens are of one.

    Args:
        windows: the window of each seed.
        length: tokens of a window.
    """

    def reduce(samples: Sequence[Sample], base: Sequence[Sample]) -> Figure:
        return _perplexity(samples, blocks([scored_span(windows[one.seed], length) for one in samples]))

    return reduce


def ratio(tokens: int) -> Reduce:
    """The perplexity over that of the same tokens in the baseline's prompts.

    Prompts of one seed end in the same text, so that the scored tokens of two prompts of one seed are the same, and
    what differs is what came before. Prompts with fewer than ``tokens`` scored tokens (if the passkey lies among
    them) are left out, as not all of their tokens are the same.
    """

    def reduce(samples: Sequence[Sample], base: Sequence[Sample]) -> Figure:
        own, other = (
            {one.seed: one.loss for one in group if one.error is None and one.scored == tokens}
            for group in (samples, base)
        )
        logs = [own[seed] - other[seed] for seed in own if seed in other]
        mean = fmean(logs) if logs else math.nan
        half = half_width(logs) if len(logs) > 1 else math.inf
        within = _exp(fmean(other.values())) if other else math.nan
        interval = (_exp(mean - half), _exp(mean + half)) if len(logs) > 1 else (0.0, math.inf)
        return Figure(_exp(mean), "ratio", len(logs), interval, baseline=within)

    return reduce


def answers(samples: Sequence[Sample], base: Sequence[Sample] = ()) -> Figure:
    """The answers given."""
    said = " / ".join(" ".join(sample.prediction.split()) or "(nothing)" for sample in samples)
    return Figure(math.nan, "text", len(samples), text=said)


def mean_of(name: str, unit: Unit) -> Reduce:
    """The mean of a figure over the samples that have it, with its interval."""
    return partial(_of, name, unit, False)


def median_of(name: str, unit: Unit) -> Reduce:
    """The median of a figure over the samples that have it; for times, of which single ones are disturbed."""
    return partial(_of, name, unit, True)


def against(name: str) -> Reduce:
    """The median over rounds (seeds) of a figure over the baseline's in the same round.

    Disturbances of a machine affect both, so ratios hold though times do not.
    """

    def reduce(samples: Sequence[Sample], base: Sequence[Sample]) -> Figure:
        rounds = {one.seed: one.figures.get(name, math.nan) for one in base}
        ratios = [one.figures.get(name, math.nan) / rounds.get(one.seed, math.nan) for one in samples]
        ratios = [ratio for ratio in ratios if not math.isnan(ratio)]
        return Figure(median(ratios) if ratios else math.nan, "number", len(ratios))

    return reduce


def _of(name: str, unit: Unit, middle: bool, samples: Sequence[Sample], base: Sequence[Sample] = ()) -> Figure:
    values = [sample.figures[name] for sample in samples if not math.isnan(sample.figures.get(name, math.nan))]
    if not values:
        return Figure(math.nan, unit)
    if middle or len(values) == 1:
        return Figure(median(values), unit, len(values))
    mean = fmean(values)
    if unit == "share":
        return Figure(mean, unit, len(values), of_shares(values))
    half = half_width(values)  # 0 if all are alike, which says nothing of how they vary
    return Figure(mean, unit, len(values), (mean - half, mean + half) if half else None)


def _perplexity(samples: Sequence[Sample], of: Sequence[int]) -> Figure:
    """The perplexity of samples, each of which is of the block that ``of`` says."""
    scored = [(block, (one.loss, one.scored)) for block, one in zip(of, samples, strict=True) if one.scored]
    value, interval = over_prompts([loss for _, loss in scored], [block for block, _ in scored])
    return Figure(value, "perplexity", len(samples), interval, blocks=len({block for block, _ in scored}))


def _exp(nats: float) -> float:
    return math.exp(nats) if math.isnan(nats) or nats < 700 else math.inf
