"""95% intervals of means, which keep near 95% with a few samples, and have a width when all samples are alike.

Of means of 0 to 1 there is one idea: Wilson's interval, whose number of answers is that of right or wrong ones whose
mean would vary as much. It lies within 0 to 1. Means without limits have Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from longspan_eval.figure import wilson

Z = 1.96  # of the normal distribution
_FEW = (12.706, 4.303, 3.182, 2.776)  # Student's t of 1 to 4 degrees of freedom


def student(n: int) -> float:
    """The 97.5% quantile of Student's t for a mean of ``n`` values, at least 2; to 0.005."""
    free = n - 1
    if free <= len(_FEW):
        return _FEW[free - 1]
    first, second, third = Z**3 + Z, 5 * Z**5 + 16 * Z**3 + 3 * Z, 3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z
    return Z + first / (4 * free) + second / (96 * free**2) + third / (384 * free**3)  # Abramowitz and Stegun, 26.7.5


def half_width(values: Sequence[float], weights: Sequence[float] = ()) -> float:
    """Half of the width of Student's interval of a mean of at least two values that have no limits.

    Args:
        weights: what each value counts in the mean, 1 together; none: all count alike. Values are taken to vary
            alike whatever they count.
    """
    share = math.fsum(weight**2 for weight in weights) if weights else 1 / len(values)
    return student(len(values)) * stdev(values) * math.sqrt(share)


def of_groups(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The interval of the mean of the mean scores of groups, each of which has a rate of its own.

    A group's variance is that of Wilson's estimate of its rate, which is never 0 or 1. The interval is Wilson's for
    the number of answers of one group that would vary as much: their number if all groups are alike, and of one group
    its own. Scores between 0 and 1 vary less than answers that are right or wrong, as whose it is too wide, if
    anything.

    Args:
        groups: the scores of each, 0 to 1, at least one.
    """
    rates = [(math.fsum(scores) + Z * Z / 2) / (len(scores) + Z * Z) for scores in groups]
    spread = math.fsum(rate * (1 - rate) / len(scores) for rate, scores in zip(rates, groups, strict=True))
    rate = fmean(rates)
    n = rate * (1 - rate) * len(groups) ** 2 / spread
    return wilson(n * fmean(map(fmean, groups)), n)


def of_shares(shares: Sequence[float]) -> tuple[float, float]:
    """The interval of the mean of at least two measured shares, such as the share of chunks that a prompt's heads keep.

    It is Wilson's with Student's quantile, for the number of right or wrong answers that would vary as the shares do.
    Shares that are all 0 or 1 are such answers, and shares that are all alike are taken for such, as they say nothing
    of how they vary.
    """
    mean, n = fmean(shares), len(shares)
    if set(shares) <= {0.0, 1.0} or len(set(shares)) == 1:
        return wilson(math.fsum(shares), n)
    like = n * mean * (1 - mean) / stdev(shares) ** 2
    return wilson(like * mean, like, student(n))
