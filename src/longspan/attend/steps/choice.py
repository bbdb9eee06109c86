"""The queries of a general step choose: rows that are alike together, and prompts of unequal length side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from longspan.attend.choosing import Chooser
from longspan.attend.layer import LayerCall
from longspan.attend.ragged import Aligned
from longspan.attend.state import TokenSpan
from longspan.attend.tables import Tables
from longspan.choosing.queries import QueryBlock
from longspan.choosing.selector import Selector
from longspan.memory import KVStore, exact
from longspan.rope import Rope, Table


@dataclass(frozen=True)
class AlikeRows:
    """Consecutive batch rows that begin with equal padding.

    Attributes:
        rows: of the batch.
        padding: slots at their start that hold no token.
        start, stop: their new queries, counted without padding.
        table: the angles of queries and keys at this length.
    """

    rows: slice
    padding: int
    start: int
    stop: int
    table: Table


@dataclass(frozen=True)
class BandsAttended:
    """A layer's call whose queries have attended to their bands.

    Attributes:
        q: ``[B, H, T, D]``, unrotated.
        out, lse: ``[B, H, T, Dv]`` and ``[B, H, T]``; what the queries choose is merged into them, in place.
        keys, values: each rotation ``[B, Hkv, N, D]``, and ``[B, Hkv, N, Dv]``, as they lie.
        base: slots before the first of those.
    """

    q: Tensor
    out: Tensor
    lse: Tensor
    keys: Sequence[Tensor]
    values: Tensor
    base: int
    store: KVStore
    rope: Rope
    layer: LayerCall
    span: TokenSpan


class GeneralChoice:
    """The part of the general step that looks at queries and keys."""

    def __init__(self, tables: Tables, chooser: Chooser) -> None:
        self._tables, self._chooser = tables, chooser
        self._rotations = {n for n in (tables.chosen_rotation, tables.scored_rotation) if n is not None}

    def add(self, of: BandsAttended, runs: Sequence[AlikeRows]) -> None:
        """Merge what queries choose into ``of.out`` and ``of.lse``."""
        selector = self._chooser.selector_in(of.store, of.layer.number, of.layer.rope)
        if len(runs) > 1 and self._aligns(of, selector):
            self._add_aligned(of, runs[0].table, selector)
            return
        for run in runs:
            if (count := run.stop - run.start) > 0:
                rows, first = run.rows, run.padding - of.base
                keys = {n: of.keys[n][rows, :, first:] for n in self._rotations}
                queries = self._queries(of, of.q[rows, :, -count:], keys, of.values[rows, :, first:], rows, run)
                self._chooser.add(of.out[rows, :, -count:], of.lse[rows, :, -count:], queries, selector, of.layer.row)

    def _aligns(self, of: BandsAttended, selector: Selector) -> bool:
        """Whether unlike rows choose together: prompts that begin in this call, and that nobody records."""
        plain = not (of.store.brought or selector.keeps_slots or self._tables.method.angles.dynamic)
        return plain and of.span.past == 0 and of.span.tokens > 1 and self._chooser.recording() is None

    def _add_aligned(self, of: BandsAttended, table: Table, selector: Selector) -> None:
        aligned, selection = Aligned(of.layer.padding, of.span.tokens), self._chooser.selection
        if aligned.counts[0] <= selection.first_query:
            return
        q, out, lse, values = (aligned.take(x) for x in (of.q, of.out, of.lse, of.values))
        keys = {n: aligned.take(of.keys[n]) for n in self._rotations}
        order = torch.tensor(aligned.order, device=q.device)
        for start, stop, rows in aligned.blocks(selection.cut_at):
            own = slice(start, stop)
            run = AlikeRows(rows, 0, start, stop, table)
            some = {n: x[rows] for n, x in keys.items()}
            queries = self._queries(of, q[rows, :, own], some, values[rows], order[rows], run)
            self._chooser.add(out[rows, :, own], lse[rows, :, own], queries, selector)
        aligned.put(out, of.out)
        aligned.put(lse, of.lse)

    def _queries(
        self,
        of: BandsAttended,
        q: Tensor,
        keys: Mapping[int, Tensor],
        values: Tensor,
        batch: slice | Tensor,
        run: AlikeRows,
    ) -> QueryBlock:
        """A run's queries for its selector, with keys by rotation and values from their first token on."""
        tables, layer = self._tables, of.layer
        return QueryBlock(
            q=q,
            keys=keys[tables.chosen_rotation],
            values=values,
            scored=None if tables.scored_rotation is None else exact(keys[tables.scored_rotation]),
            batch=batch,
            start=run.start,
            stop=run.stop,
            rope=of.rope.with_table(run.table),
            scale=layer.scale,
            softcap=layer.softcap,
            layer=layer.number,
            padding=run.padding,
            table=partial(self._chooser.window_table, run.table, q.device),
            shared=of.span.shared,
        )
