"""The rule by which one of several candidates is chosen that have read the same texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from longspan_eval.tune.halving import Done, Standing, loss, ranked


@dataclass(frozen=True)
class Decision:
    """A candidate, and what it was chosen from.

    Attributes:
        row: the candidate.
        most: the candidate that found most.
        near: those that found as many within the noise. alike: those of ``near`` that predict as well as the best of
            them within the noise.
    """

    row: int
    most: int
    near: tuple[int, ...]
    alike: tuple[int, ...]


def choose(stands: Standing, done: Done) -> Decision:
    """Most facts found; of those within the noise the lowest perplexity; of those within the noise the fastest.

    The noise of two candidates is one standard error of the mean of their differences, question by question and text by
    text, since all have the same ones. (Overlapping 95% intervals would call nearly all candidates alike after the few
    texts that some minutes allow, and so choose by perplexity alone.) Of a single text there is no noise of perplexity.
    """
    rows, texts = stands.rows, range(stands.texts)
    most = ranked(rows, done, stands.texts)[0]

    def answers(row: int) -> list[float]:
        return [right for text in texts for right in done[row, text].found]

    near = tuple(row for row in rows if _within(answers(most), answers(row)))
    best = min(near, key=lambda row: (loss(row, done, stands.texts), row))
    losses = {row: [-done[row, text].loss for text in texts] for row in near}
    alike = tuple(row for row in near if _within(losses[best], losses[row]))
    fastest = min(alike, key=lambda row: (fmean(done[row, text].read for text in texts), row))
    return Decision(fastest, most, near, alike)


def _within(better: Sequence[float], other: Sequence[float]) -> bool:
    """Whether paired values are no more than one standard error below others in the mean."""
    differences = [one - two for one, two in zip(better, other, strict=True)]
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return fmean(differences) <= error * (1 + 1e-9)  # one answer apart is one error, to rounding
