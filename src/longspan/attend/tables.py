"""Tables that no choice changes: ranges of keys by band, cos and sin, factors. Every step reads them here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from longspan.attend.ahead import AHEAD, DeviceTables, TokenTables
from longspan.attend.choosing import Chooser
from longspan.attend.ragged import stacked
from longspan.attend.rows import RowTables
from longspan.attend.state import Ranges, TokenSpan
from longspan.bands import KeyMap
from longspan.choosing.by_row import check_positions
from longspan.kernels.banded import BandAngles, Plan, make_plan
from longspan.methods import Method
from longspan.rope import CosSin, Table, cos_sin
from longspan.selection import Selection

_CACHED = 64  # tables of so many tokens each that are kept, those used last, for rows of unequal padding among others


class Tables:
    """Tables of queries of one resolved method at one window, for all layers of a model.

    It holds nothing that depends on a forward: an entry of its caches depends on its key alone, so that threads may
    share it; the tables of a forward are cached in that forward's span.

    Attributes:
        key_maps: the stored rotations of the keys.
        chosen_rotation, scored_rotation: which of them chosen keys are read from and scores are computed from; the
            latter None if the selector keeps the inputs of scores itself.
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
        self._single = lru_cache(_CACHED)(lambda start: self._computed(self._alone, start, start + AHEAD, 0))
        self._tokens = lru_cache(_CACHED)(self._tokens_from)
        self._on_device = lru_cache(_CACHED)(self._tokens_on)

    def angles(self, table: Table, total: int = 0, span: TokenSpan | None = None) -> Table:
        """The angles that stand for a layer's ``table`` if there are ``total`` tokens; the same object every time.

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

    def seen(
        self, span: TokenSpan, pad: int, start: int, stop: int, table: Table, device: torch.device
    ) -> tuple[Ranges, BandAngles]:
        """What the queries ``start : stop`` see, which arrive together, of rows that begin with ``pad`` padding.

        Returns:
            The keys of each band, for a kernel of this ``device``, in tensors on the CPU; and cos and sin
            ``[T, r / 2]`` of each band's queries, with the method's factor.
        """
        key = pad, table, device
        if key not in span.seen:
            if self._is_ahead(span, device):
                tables = self._on_device(table, start - start % AHEAD, device)
                span.seen[key] = tables.token(start)
                if (at := tables.positions_of(start)) is not None:
                    span.shared.positions[start, stop, at.shape[-1], device] = at
            else:
                ranges = self._ranges(span, pad, start, stop, device)
                factor = self.method.query_factor(self.window, stop)
                span.seen[key] = ranges, _scaled(ranges.plan, table, factor, device)
        return span.seen[key]

    def _ranges(self, span: TokenSpan, pad: int, start: int, stop: int, device: torch.device) -> Ranges:
        """The keys of such queries, whatever the angles of a layer are."""
        key = pad, device
        if key not in span.ranges:
            there = None if computes_here(device) else device
            known = self._rows.ranges(start, stop, there) if self._rows is not None else None
            span.ranges[key] = known or self._computed(self.selection, start, stop)
        return span.ranges[key]

    def unlike(self, span: TokenSpan, tables: Sequence[Table], device: torch.device) -> tuple[Ranges, BandAngles]:
        """``seen`` for the span's queries in rows that begin with unequal padding: ``[B, T]`` and ``[B, T, r / 2]``.

        Args:
            tables: each row's table of angles.
        """
        key = None, tables[0], device
        if key not in span.seen:
            ranges, rows, stop = span.ranges.get((None, device)), [], span.past + span.tokens
            if ranges is None:
                for pad in span.padding:
                    start, here = max(span.past - pad, 0), torch.device("cpu")
                    rows.append(self._ranges(span, pad, start, stop - pad, here) if start < stop - pad else None)
                ranges = span.ranges[None, device] = stacked(rows, span.padding, span.tokens)
            factors = [self.method.query_factor(self.window, max(stop - pad, 0)) for pad in span.padding]
            by_row = torch.tensor(factors)[:, None, None]
            if all(table is tables[0] for table in tables):
                angles = _scaled(ranges.plan, tables[0], by_row, device)
            else:
                each = zip(tables, by_row, strict=True)
                own = [_scaled(ranges.plan.row(n), table, factor, device) for n, (table, factor) in enumerate(each)]
                angles = BandAngles(*(torch.stack([getattr(x, n) for x in own], dim=1) for n in ("cos", "sin")))
            span.seen[key] = ranges, angles
        return span.seen[key]

    def new_keys(self, span: TokenSpan, table: Table, device: torch.device) -> Sequence[CosSin]:
        """For each stored rotation cos and sin of the span's own keys, ``[T, r / 2]``, or ``[B, T, r / 2]`` padded."""
        key = None, table, device
        if key not in span.keys:
            alike = len(set(span.padding)) == 1
            if alike and self._is_ahead(span, device):
                token = max(span.past - span.padding[0], 0)
                span.keys[key] = self._on_device(table, token - token % AHEAD, device).key(token)
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

    def token(self, table: Table, token: int) -> TokenTables:
        """All that ``AHEAD`` tokens see that come one at a time, ``token`` among them.

        Their plan numbers bands as ``Method.bands`` does.
        """
        return self._tokens(table, token - token % AHEAD)

    @torch.inference_mode(False)  # kept for later calls, which may be outside of it
    def _tokens_from(self, table: Table, start: int) -> TokenTables:
        ranges, i, cpu = self._single(start), torch.arange(start, start + AHEAD), torch.device("cpu")
        shown = sum((hi - lo for lo, hi in zip(ranges.plan.lo, ranges.plan.hi, strict=True)), torch.zeros_like(i))
        stops, positions = torch.zeros_like(i), None
        if (chooser := self.chooser) is not None and (positions := chooser.places(i)) is not None:
            stops = torch.where(i < chooser.selection.first_query, 0, chooser.selection.stops(i))
        queries, keys = _scaled(ranges.plan, table, self._factors(i), cpu), self._keys(i, table, cpu)
        return TokenTables(start, ranges, queries, keys, shown.tolist(), stops.tolist(), positions)

    def _tokens_on(self, table: Table, start: int, device: torch.device) -> DeviceTables:
        tables = self._tokens(table, start)
        if self.chooser is not None and (at := tables.positions) is not None:  # no kernel of a device checks them
            first = max(self.chooser.selection.first_query - start, 0)
            check_positions(at if len(at) == 1 else at[first:], self.window, self.chooser.positions)
        return DeviceTables.of(tables, device)

    def single(self, token: int) -> Ranges:
        """The keys of ``AHEAD`` tokens that come one at a time, ``token`` among them, whatever the angles are."""
        return self._single(token - token % AHEAD)

    def _factors(self, i: Tensor) -> Tensor:
        """The method's factor of queries ``i`` ``[T]`` that come alone: ``[T, 1]``."""
        factors = [self.method.query_factor(self.window, int(n) + 1) for n in i]
        return torch.tensor(factors, dtype=torch.float32, device="cpu")[:, None]

    def _is_ahead(self, span: TokenSpan, device: torch.device) -> bool:
        """Whether the span's tables are among those of many tokens on this device."""
        return span.tokens == 1 and not self.method.angles.dynamic and not computes_here(device)

    def _keys(self, tokens: Tensor, table: Table, device: torch.device) -> BandAngles:
        """For each stored rotation cos and sin of the keys ``tokens``, of any shape."""
        return BandAngles(*cos_sin(table, torch.stack([to(tokens) for to in self.key_maps]), device))

    def _computed(self, selection: Selection, start: int, stop: int, first: int | None = None) -> Ranges:
        """Bands are numbered as those of the queries ``first : stop``, if given."""
        bands = self.positions.all_bands(selection.kept(start if first is None else first, stop))
        plan = make_plan(bands, start, stop)
        return Ranges(plan, tuple(self.key_maps.index(bands[band].k_pos) for band in plan.bands))


def computes_here(device: torch.device) -> bool:
    """Whether a device's memory is this processor's, so that a copy to it costs its bytes alone."""
    return device.type == "cpu"


def _scaled(plan: Plan, table: Table, factor: float | Tensor, device: torch.device) -> BandAngles:
    """cos and sin of a plan's queries, multiplied by their factor: one, or ``[T, 1]``."""
    at = plan.positions(table.inv_freq.device)  # of all bands at once: one copy to the device, if any
    cos, sin = cos_sin(table, at, device, plan.farthest)
    if not isinstance(factor, Tensor) and factor == 1:
        return BandAngles(cos, sin)
    factor = factor.to(device) if isinstance(factor, Tensor) else factor
    return BandAngles(cos * factor, sin * factor)
