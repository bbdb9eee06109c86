"""What a selecting method chose, for whoever asks: a layer's choice for one query, and the scores that decided it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from longspan.attend.rows import Rows
from longspan.selection.blocks import Blocks
from longspan.selection.chunks import Chunks
from longspan.selection.middle import Middle
from longspan.selection.tokens import Tokens

Range = tuple[int, int]  # tokens, first and one past the last


@dataclass(frozen=True)
class Choice:
    """What one query, or the queries of a piece together, chose in one layer for one row of a batch.

    Indices are the row's own, padding not counted. Unit ``u`` is the ``size`` tokens from ``origin + u · size`` on.

    Attributes:
        call: which forward of the recording it was, from 0.
        layer, row: the layer's number, and the row of the batch.
        first, query: the queries ``first .. query`` chose together; the same one where each chooses for itself.
        units: ``[S, n]`` int64 on the CPU, ascending: what each of the S that choose (heads, groups or the layer) took.
        size, origin: tokens of a unit, and the first token of unit 0.
        scores: ``[S, N]`` fp32 on the CPU of the units from ``scored_from`` on, those that are kept anyway among them
            where they have a score. None where no score decided, or none was asked for.
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
        self.call = -1

    def wants(self, stop: int, total: int) -> bool:
        """Whether of queries up to ``stop`` in a call that ends at ``total`` any is asked for."""
        return self.every or stop == total

    def by_row(
        self, rows: Rows, r0: int, r1: int, selection: Chunks | Middle, units: Tensor, scores: Tensor | None
    ) -> None:
        """Queries ``r0 : r1`` chose ``units`` ``[B, S, T, n]`` by ``scores`` ``[B, S, T, N]``."""
        scored_from = selection.initial if isinstance(selection, Middle) else 0
        for query in range(r0 if self.every else r1 - 1, r1):
            n = query - r0
            of_row = None if scores is None else scores[:, :, n]
            if of_row is not None:  # what the last query may choose from is not there yet for all
                of_row = of_row[..., : _scored(selection, query)]
            self._add(
                rows, query, query, selection.size, 0, units[:, :, n], of_row, scored_from, _kept(selection, query)
            )

    def by_piece(
        self,
        rows: Rows,
        r0: int,
        r1: int,
        selection: Tokens | Blocks,
        tokens: Tensor,
        scores: Callable[[], Tensor],
    ) -> None:
        """Queries ``r0 : r1`` together chose ``tokens`` ``[B, S, n]`` by ``scores`` ``[B, S, N]`` of units."""
        size, origin = (selection.size, selection.initial) if isinstance(selection, Blocks) else (1, 0)
        units = (tokens[..., ::size] - origin) // size
        kept = (0, selection.initial), (max(r0 - selection.local, 0), r1)
        self._add(rows, r0, r1 - 1, size, origin, units, scores() if self.scores else None, 0, kept)

    def _add(
        self,
        rows: Rows,
        first: int,
        query: int,
        size: int,
        origin: int,
        units: Tensor,
        scores: Tensor | None,
        scored_from: int,
        kept: tuple[Range, ...],
    ) -> None:
        for n in range(units.shape[0]):
            self.choices.append(
                Choice(
                    call=self.call,
                    layer=rows.layer,
                    row=rows.batch.start + n,
                    first=first,
                    query=query,
                    units=units[n].detach().cpu().clone(),
                    size=size,
                    origin=origin,
                    scores=None if scores is None or not self.scores else scores[n].detach().float().cpu().clone(),
                    scored_from=scored_from,
                    kept=tuple((a, b) for a, b in kept if a < b),
                    padding=rows.padding,
                )
            )


def _kept(selection: Chunks | Middle, query: int) -> tuple[Range, ...]:
    if isinstance(selection, Middle):
        return (0, selection.initial), (query - selection.recent + 1, query + 1)
    local = (query // selection.size - selection.local + 1) * selection.size
    return (0, selection.head), (max(local, 0), query + 1)


def _scored(selection: Chunks | Middle, query: int) -> int:
    """How many units have a score for a query."""
    if isinstance(selection, Middle):
        return selection.stop(query) - selection.initial
    return selection.candidates(query + 1)
