"""Seconds by a method's own cost: few coefficients, fitted by least squares to what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from longspan.doctor.work import Work

PRIOR = 0.1  # weight of "what is scored costs as much as what is attended" against a relative error of one


@dataclass(frozen=True)
class Law:
    """``seconds = call · calls + token · tokens + attended · attended + scored · scored``; see ``Work``.

    Attributes:
        call, token: seconds of each.
        attended, scored: seconds of one unit of work.
    """

    call: float
    token: float
    attended: float
    scored: float

    def seconds(self, work: Work) -> float:
        """What some work takes."""
        return (
            self.call * work.calls
            + self.token * work.tokens
            + self.attended * work.attended
            + self.scored * work.scored
        )


def fit(works: Sequence[Work], seconds: Sequence[float]) -> Law:
    """The law that is closest to what was measured, by the sum of squared relative errors; no coefficient is negative.

    Scores are few at the lengths that are measured and may be most of the work at the length that is asked for. So
    their rate is held, weakly, to that of attended keys, which do the same operations on the same memory.

    Args:
        works: at least one, not all of them nothing.
        seconds: of each, positive.
    """
    rows = torch.tensor([[w.calls, w.tokens, w.attended, w.scored] for w in works], dtype=torch.float64)
    times = torch.tensor(list(seconds), dtype=torch.float64)
    if rows.shape[0] == 0 or bool((times <= 0).any()):
        raise ValueError("a law is fitted to one measurement or more, of positive seconds each")
    scale = rows.abs().amax(dim=0).clamp(min=1e-300)
    relative, ones = rows / times[:, None], torch.ones_like(times)
    merged = relative.clone()
    merged[:, 2] += merged[:, 3]
    both = float(_not_negative(merged[:, :3], ones, rows.amax(dim=0)[:3].clamp(min=1e-300))[2])
    if both > 0:
        row = torch.tensor([[0.0, 0.0, -PRIOR / both, PRIOR / both]], dtype=torch.float64)
        relative, ones = torch.cat((relative, row)), torch.cat((ones, ones.new_zeros(1)))
        if not bool(rows[:, 3].any()):
            scale[3] = scale[2]  # nothing was scored where it was measured: the prior alone says what that costs
    return Law(*_not_negative(relative, ones, scale).tolist())


def _not_negative(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """The ``x ≥ 0`` with the least ``|a x - b|``: of few columns, every set of those that may be above zero is tried."""
    columns = [n for n in range(a.shape[1]) if bool(a[:, n].any())]
    best, least = a.new_zeros(a.shape[1]), float(b.square().sum())
    scaled = a / scale
    for count in range(1, len(columns) + 1):
        for some in combinations(columns, count):
            own = scaled[:, list(some)]
            x = torch.linalg.lstsq(own, b[:, None], driver="gelsd").solution[:, 0]
            error = float((own @ x - b).square().sum())
            if bool((x >= 0).all()) and error < least * (1 - 1e-9):
                best, least = a.new_zeros(a.shape[1]), error
                best[list(some)] = x / scale[list(some)]
    return best
