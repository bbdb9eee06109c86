"""Tables that no choice changes: ranges of keys by band, cos and sin, factors. Every step reads them here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from longspan.attend.ahead import AnglesAhead, RangesAhead
from longspan.attend.choosing import Chooser
from longspan.attend.ragged import stacked
from longspan.attend.rows import RowTables
from longspan.attend.state import Ranges, TokenSpan
from longspan.bands import KeyMap
from longspan.kernels.banded import BandAngles, Plan, make_plan
from longspan.methods import Method
from longspan.rope import CosSin, Table, cos_sin
from longspan.selection import Selection
from longspan.selection.by_row import check_positions

AHEAD = 128  # single tokens that tables are computed for at once
_CACHED = 64  # tables of so many tokens each that are kept, those used last, for rows of unequal padding among others


@dataclass(frozen=True, eq=False)
class DecodeTables:
    """Tables of tokens ``start : start + AHEAD`` of a row that come one at a time, under one table of angles.

    Attributes:
        ranges: the keys of each band.
        queries: for each band of the plan cos and sin ``[AHEAD, r / 2]`` of its queries, with the method's factor.
        keys: for each stored rotation cos and sin ``[AHEAD, r / 2]`` of the tokens' own keys.
        shown: how many keys the bands show to each token.
        stops: one past the last unit that each token chooses from, 0 where it chooses none.
        positions: ``[AHEAD, m]`` or ``[1, m]`` int64, where a token sees its chosen units from.
    """

    start: int
    ranges: Ranges
    queries: tuple[CosSin, ...]
    keys: tuple[CosSin, ...]
    shown: list[int]
    stops: list[int]
    positions: Tensor


class Tables:
    """Tables of queries of one resolved method at one window, for all layers of a model.

    It holds nothing that depends on a forward: an entry of its caches depends on its key alone, so that threads may
    share it; the tables of a forward are cached in that forward's span.

    Attributes:
        key_maps: the stored rotations of the keys.
        chosen_rotation, scored_rotation: which of them chosen keys are read from and scores are computed from; the
            latter None where the selector keeps what scores take.
    """

    def __init__(self, method: Method, window: int, chooser: Chooser | None) -> None:
        self.method, self.window, self.chooser = method, window, chooser
        self.selection, self.positions = method.selection(window), method.positions(window)
        self.key_maps: list[KeyMap] = list(method.key_maps(window))
        self.chosen_rotation, self.scored_rotation = 0, None
        if chooser is not None:
            scored = chooser.selection.scored_keys
            self.chosen_rotation = self.key_maps.index(chooser.positions.chosen_keys(chooser.selection.always()))
            self.scored_rotation = None if scored is None else self.key_maps.index(scored)
        self._alone = self.selection.alone()
        # A query that comes alone begins a call of its own: what it sees then depends on its index only.
        self._rows: RowTables | None = None
        if self._alone is self.selection:
            bands = len(self.positions.all_bands(self.selection.kept(0, sys.maxsize)))
            self._rows = RowTables(lambda n: self._computed(self.selection, 0, n), bands, self.key_maps)
        self._angles: dict[Table, Table] = {}
        self._cached_ranges = lru_cache(_CACHED)(lambda start: self._computed(self._alone, start, start + AHEAD, 0))
        self._cached_decode = lru_cache(_CACHED)(self._decode_ahead)
        # By device too: where each copy to it takes longer than its bytes, a token alone makes none.
        self._ranges_ahead = lru_cache(_CACHED)(lambda start, device: RangesAhead.of(self.single(start), device))
        self._angles_ahead = lru_cache(_CACHED)(self._angles_of)
        self._places_ahead = lru_cache(_CACHED)(self._places_of)

    def angles(self, table: Table, total: int = 0, span: TokenSpan | None = None) -> Table:
        """The angles that stand for a layer's ``table`` where there are ``total`` tokens; the same object every time.

        Angles that depend on the length are kept by the ``span`` of a forward.
        """
        if self.method.angles.dynamic:
            tables = span.tables if span is not None else {}
            if (total, table) not in tables:
                tables[total, table] = self.method.angles.table(table, self.window, total)
            return tables[total, table]
        if table not in self._angles:
            # By setdefault, so that threads that meet here get one object.
            self._angles.setdefault(table, self.method.angles.table(table, self.window, total))
        return self._angles[table]

    def ranges(self, span: TokenSpan, pad: int, start: int, stop: int, device: torch.device) -> Ranges:
        """The keys of the queries ``start : stop``, which arrive together, of rows that begin with ``pad`` padding.

        A kernel of this ``device`` may read them; their tensors are on the CPU.
        """
        key = pad, device
        if key not in span.ranges:
            if self._is_ahead(span, device):
                span.ranges[key] = self._ranges_ahead(start - start % AHEAD, device).token(start)
                if (places := self._places_ahead(start - start % AHEAD, device)) is not None:
                    at = places if len(places) == 1 else places[start % AHEAD : start % AHEAD + 1]
                    span.shared.positions[start, stop, at.shape[-1], device] = at
            else:
                there = None if computes_here(device) else device
                known = self._rows.ranges(start, stop, there) if self._rows is not None else None
                span.ranges[key] = known or self._computed(self.selection, start, stop)
        return span.ranges[key]

    def queries(self, span: TokenSpan, pad: int, plan: Plan, table: Table, device: torch.device) -> BandAngles:
        """For each band of a plan cos and sin ``[T, r / 2]`` of its queries, with the method's factor."""
        key = pad, table, device
        if key not in span.queries:
            if self._is_ahead(span, device):
                ahead = self._angles_ahead(table, plan.start - plan.start % AHEAD, device)
                span.queries[key] = ahead.of_queries(plan.start)
            else:
                span.queries[key] = _scaled(plan, table, self.method.query_factor(self.window, plan.stop), device)
        return span.queries[key]

    def unlike(self, span: TokenSpan, device: torch.device) -> Ranges:
        """The keys of the span's queries in all of its rows, which begin with unequal padding: a plan of ``[B, T]``."""
        key = None, device
        if key not in span.ranges:
            here, rows = torch.device("cpu"), []
            for pad in span.padding:
                start, stop = max(span.past - pad, 0), span.past + span.tokens - pad
                rows.append(self.ranges(span, pad, start, stop, here) if start < stop else None)
            span.ranges[key] = stacked(rows, span.padding, span.tokens)
        return span.ranges[key]

    def unlike_queries(self, span: TokenSpan, plan: Plan, tables: Sequence[Table], device: torch.device) -> BandAngles:
        """``queries`` of unlike rows, each with a table of angles of its own: ``[B, T, r / 2]`` for each band."""
        key = None, tables[0], device
        if key not in span.queries:
            stops = [max(span.past + span.tokens - pad, 0) for pad in span.padding]
            factors = torch.tensor([self.method.query_factor(self.window, stop) for stop in stops])[:, None, None]
            if all(table is tables[0] for table in tables):
                span.queries[key] = _scaled(plan, tables[0], factors, device)
            else:
                every = zip(tables, factors, strict=True)
                rows = [_scaled(plan.row(n), table, factor, device) for n, (table, factor) in enumerate(every)]
                cos, sin = (torch.stack(x, dim=1) for x in zip(*((row.cos, row.sin) for row in rows), strict=True))
                span.queries[key] = BandAngles(cos, sin)
        return span.queries[key]

    def new_keys(self, span: TokenSpan, table: Table, device: torch.device) -> Sequence[CosSin]:
        """For each stored rotation cos and sin of the span's own keys, ``[T, r / 2]``, or ``[B, T, r / 2]`` padded."""
        key = None, table, device
        if key not in span.keys:
            alike = len(set(span.padding)) == 1
            if alike and self._is_ahead(span, device):
                token = max(span.past - span.padding[0], 0)
                span.keys[key] = self._angles_ahead(table, token - token % AHEAD, device).of_keys(token)
                return span.keys[key]
            first, known = span.past - span.padding[0], None
            if alike and self._rows is not None and not computes_here(device):
                known = self._rows.key_positions(first, first + span.tokens, table.inv_freq.device)
            if known is not None:
                positions, most = known
                span.keys[key] = BandAngles(*cos_sin(table, positions, device, most))
                return span.keys[key]
            pads = span.padding[0] if alike else torch.tensor(span.padding)[:, None]
            tokens = (torch.arange(span.past, span.past + span.tokens) - pads).clamp(min=0)
            span.keys[key] = self._keys(tokens, table, device)
        return span.keys[key]

    def all_keys(self, span: TokenSpan, pad: int, total: int, table: Table, device: torch.device) -> Sequence[CosSin]:
        """For each stored rotation cos and sin ``[total, r / 2]`` of all keys, which dynamic angles rotate anew."""
        key = pad, table, device
        if key not in span.keys:
            span.keys[key] = self._keys(torch.arange(total), table, device)
        return span.keys[key]

    def single(self, token: int) -> Ranges:
        """The keys of ``AHEAD`` tokens that come one at a time, ``token`` among them; see ``DecodeTables``.

        Their plan numbers bands as ``Method.bands`` does.
        """
        return self._cached_ranges(token - token % AHEAD)

    def decode(self, table: Table, token: int) -> DecodeTables:
        """All that ``AHEAD`` tokens see that come one at a time, ``token`` among them."""
        return self._cached_decode(table, token - token % AHEAD)

    def _decode_ahead(self, table: Table, start: int) -> DecodeTables:
        ranges, i, cpu = self.single(start), torch.arange(start, start + AHEAD), torch.device("cpu")
        shown = sum((hi - lo for lo, hi in zip(ranges.plan.lo, ranges.plan.hi, strict=True)), torch.zeros_like(i))
        stops, positions = torch.zeros_like(i), i[:, None]
        if (chooser := self.chooser) is not None and (chosen := chooser.places(i)) is not None:
            stops = torch.where(i < chooser.selection.first_query, 0, chooser.selection.stops(i))
            positions = chosen
        return DecodeTables(
            start=start,
            ranges=ranges,
            queries=tuple(_scaled(ranges.plan, table, self._factors(i), cpu)),
            keys=tuple(self._keys(i, table, cpu)),
            shown=shown.tolist(),
            stops=stops.tolist(),
            positions=positions,
        )

    def _factors(self, i: Tensor) -> Tensor:
        """The method's factor of queries ``i`` ``[T]`` that come alone: ``[T, 1]``."""
        factors = [self.method.query_factor(self.window, int(n) + 1) for n in i]
        return torch.tensor(factors, dtype=torch.float32, device="cpu")[:, None]

    def _is_ahead(self, span: TokenSpan, device: torch.device) -> bool:
        """Whether the span's tables are among those of many tokens on this device."""
        return span.tokens == 1 and not self.method.angles.dynamic and not computes_here(device)

    @torch.inference_mode(False)  # kept for later calls, which may be outside of it
    def _angles_of(self, table: Table, start: int, device: torch.device) -> AnglesAhead:
        i, plan = torch.arange(start, start + AHEAD), self.single(start).plan
        queries, keys = _scaled(plan, table, self._factors(i), device), self._keys(i, table, device)
        return AnglesAhead.of(start, (queries.cos, queries.sin), (keys.cos, keys.sin))

    @torch.inference_mode(False)
    def _places_of(self, start: int, device: torch.device) -> Tensor | None:
        """Where the tokens see their chosen units from, as ``Chooser.places`` gives them."""
        if self.chooser is None:
            return None
        i = torch.arange(start, start + AHEAD)
        if (places := self.chooser.places(i)) is None:
            return None
        used = places if len(places) == 1 else places[i >= self.chooser.selection.first_query]
        check_positions(used, self.window, self.chooser.positions)
        return places.to(device)

    def _keys(self, tokens: Tensor, table: Table, device: torch.device) -> BandAngles:
        """For each stored rotation cos and sin of the keys ``tokens``, of any shape."""
        return BandAngles(*cos_sin(table, torch.stack([to(tokens) for to in self.key_maps]), device))

    def _computed(self, selection: Selection, start: int, stop: int, first: int | None = None) -> Ranges:
        """Bands are numbered as those of the queries ``first : stop``, where given."""
        bands = self.positions.all_bands(selection.kept(start if first is None else first, stop))
        plan = make_plan(bands, start, stop)
        return Ranges(plan, tuple(self.key_maps.index(bands[band].k_pos) for band in plan.bands))


def computes_here(device: torch.device) -> bool:
    """Whether a device's memory is this processor's, where a copy to it costs its bytes alone."""
    return device.type == "cpu"


def _scaled(plan: Plan, table: Table, factor: float | Tensor, device: torch.device) -> BandAngles:
    """cos and sin of a plan's queries, multiplied by their factor: one, or ``[T, 1]``."""
    at = plan.positions(table.inv_freq.device)  # of all bands at once: one copy to the device, if any
    cos, sin = cos_sin(table, at, device, plan.farthest)
    if not isinstance(factor, Tensor) and factor == 1:
        return BandAngles(cos, sin)
    factor = factor.to(device) if isinstance(factor, Tensor) else factor
    return BandAngles(cos * factor, sin * factor)
