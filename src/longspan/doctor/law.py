"""Seconds by a method's own cost: few coefficients, fitted by least squares to what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from longspan.doctor.work import Work

PRIOR = 0.03  # weight of "all work is done at one rate" beside a measurement's relative error


@dataclass(frozen=True)
class Law:
    """``seconds = call · calls + weights · weights + attended · attended + scored · scored``; see ``Work``.

    Attributes:
        call: seconds of each.
        weights, attended, scored: seconds of one unit of work.
    """

    call: float
    weights: float
    attended: float
    scored: float

    def seconds(self, work: Work) -> float:
        """Seconds of some work."""
        return (
            self.call * work.calls
            + self.weights * work.weights
            + self.attended * work.attended
            + self.scored * work.scored
        )


def fit(works: Sequence[Work], seconds: Sequence[float]) -> Law:
    """The law that is closest to what was measured, by the weighted sum of squared relative errors; no coefficient is
    negative.

    An error counts by the square of a measurement's share of the most work: the law is asked for lengths beyond the
    longest one, and what a byte takes changes on the way there, where the processor's caches no longer hold the keys.

    Keys and scores are a small part of the work at the lengths that are measured, and most of it at the one that is
    asked for. So their rates are held, weakly, to each other and to that of the weights: the operations are the same,
    and so is the memory. The weak tie decides where a slow model was measured at few short lengths, or where nothing
    was scored yet, and gives way to measurements that say more.

    Args:
        works: of the same kind, at least one; each has some work with weights.
        seconds: of each, positive.
    """
    rows = torch.tensor([[w.calls, w.weights, w.attended, w.scored] for w in works], dtype=torch.float64)
    times = torch.tensor(list(seconds), dtype=torch.float64)
    if rows.shape[0] == 0 or bool((times <= 0).any()) or bool((rows[:, 1] <= 0).any()):
        raise ValueError("a law is fitted to one measurement or more, of some work and positive seconds each")
    if bool((rows[:, 1] == rows[0, 1]).all()):
        rows[:, 0] = 0  # of calls that are all alike, what a call takes by itself is told as part of its weights
    work = rows[:, 1:].sum(dim=1)
    rate = float((times / work).median())
    # In units of that rate, so that columns of very different sizes are solved together.
    weight = (work / work.max()).square()
    a = torch.cat((rows[:, :1], rows[:, 1:] * rate), dim=1) / times[:, None] * weight[:, None]
    ties = torch.tensor([[0, -1, 1, 0], [0, 0, -1, 1]], dtype=torch.float64) * PRIOR
    found = _not_negative(torch.cat((a, ties)), torch.cat((weight, a.new_zeros(2))))
    call, *others = found.tolist()
    return Law(call, *(x * rate for x in others))


def _not_negative(a: Tensor, b: Tensor) -> Tensor:
    """The ``x ≥ 0`` with the least ``|a x - b|``: every set of the few columns is tried for those above zero."""
    columns = [n for n in range(a.shape[1]) if bool(a[:, n].any())]
    best, least = a.new_zeros(a.shape[1]), float(b.square().sum())
    for count in range(1, len(columns) + 1):
        for some in combinations(columns, count):
            own = a[:, list(some)]
            x = torch.linalg.lstsq(own, b[:, None], driver="gelsd").solution[:, 0]
            error = float((own @ x - b).square().sum())
            if bool((x >= 0).all()) and error < least * (1 - 1e-9):
                best, least = a.new_zeros(a.shape[1]), error
                best[list(some)] = x
    return best
