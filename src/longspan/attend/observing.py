"""A selecting method's choices, for any observer: a layer's choice for one query, and the scores that decided it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from threading import local

import torch
from torch import Tensor

from longspan.choosing.base import Choosing
from longspan.choosing.selector import Chosen

Range = tuple[int, int]  # tokens, first and one past the last


@dataclass(frozen=True)
class Choice:
    """The choice of a query, or a query chunk, in one layer for one row of a batch.

    Indices are the row's own, padding not counted. Unit ``u`` is the ``size`` tokens from ``origin + u · size`` on.

    Attributes:
        call: which forward of the recording it was, from 0, in the order in which they began.
        layer, row: the layer's number, and the row of the batch.
        first, query: the queries ``first .. query`` chose together; the same one if each chooses for itself.
        units: ``[S, m]`` int64 on the CPU, ascending: what each of the S that choose (heads, groups or the layer) took.
        size, origin: tokens of a unit, and the first token of unit 0.
        scores: ``[S, n]`` fp32 on the CPU of the units from ``scored_from`` on, those that are kept anyway among them
            if they have a score. None if no score decided, or none was asked for.
        scored_from: the unit of the first score.
        kept: token ranges that ``query`` attends to whatever is chosen.
        padding: padding tokens that the row begins with.
    """

    call: int
    layer: int
    row: int
    first: int
    query: int
    units: Tensor
    size: int
    origin: int
    scores: Tensor | None
    scored_from: int
    kept: tuple[Range, ...]
    padding: int


class Observer:
    """Collects choices, of the last query of each call or of all.

    Args:
        every: all queries that choose, not only the last one of each call.
        scores: whether scores are wanted too.
    """

    def __init__(self, every: bool, scores: bool) -> None:
        self.every, self.scores = every, scores
        self.choices: list[Choice] = []
        self._numbers, self._running = count(), local()

    def begin(self) -> None:
        """A forward begins in this thread, which runs all of it: number it."""
        self._running.call = next(self._numbers)

    @property
    def call(self) -> int | None:
        """The number of the forward that this thread is in; None for one that is not recorded."""
        return getattr(self._running, "call", None)

    def wants(self, stop: int, total: int) -> bool:
        """Whether of queries up to ``stop`` in a call that ends at ``total`` any is asked for."""
        return self.call is not None and (self.every or stop == total)

    def add(
        self, queries: Range, selection: Choosing, chosen: Chosen, *, layer: int, row: int, start: int, padding: int
    ) -> None:
        """``queries`` chose, in a forward that has a number.

        Args:
            queries: the first one and one past the last, without padding.
            row: the first row of the batch that ``chosen`` is of.
            start: the first query of the call.
            padding: padding tokens that these rows begin with.
        """
        call = self.call
        assert call is not None
        all_scores = chosen.scores() if self.scores and chosen.scores is not None else None
        for first, query, units, scores in selection.choices(*queries, chosen.units, all_scores, self.every):
            kept = selection.always(start)
            border = int(kept.border(torch.tensor([query])))
            for b in range(units.shape[0]):
                self.choices.append(
                    Choice(
                        call=call,
                        layer=layer,
                        row=row + b,
                        first=first,
                        query=query,
                        units=units[b].detach().cpu().clone(),
                        size=selection.size,
                        origin=selection.origin,
                        scores=None if scores is None else scores[b].detach().float().cpu().clone(),
                        scored_from=selection.scored_from,
                        kept=tuple((a, z) for a, z in ((0, kept.head), (border, query + 1)) if a < z),
                        padding=padding,
                    )
                )
