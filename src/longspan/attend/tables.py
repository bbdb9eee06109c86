"""Tables that no choice changes: ranges of keys by band, cos and sin, factors. Every step reads them here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from longspan.attend.choosing import Chooser
from longspan.attend.state import Ranges, TokenSpan
from longspan.bands import KeyMap
from longspan.kernels.banded import Plan, make_plan
from longspan.methods import Method
from longspan.rope import CosSin, Table, cos_sin
from longspan.selection import Selection

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
        self._angles: dict[Table, Table] = {}
        self._cached_ranges = lru_cache(_CACHED)(lambda start: self._computed(self._alone, start, start + AHEAD))
        self._cached_decode = lru_cache(_CACHED)(self._decode_ahead)

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

    def ranges(self, span: TokenSpan, pad: int, start: int, stop: int) -> Ranges:
        """The keys of the queries ``start : stop``, which arrive together, of rows that begin with ``pad`` padding."""
        if pad not in span.ranges:
            span.ranges[pad] = self._computed(self.selection, start, stop)
        return span.ranges[pad]

    def queries(self, span: TokenSpan, pad: int, plan: Plan, table: Table, device: torch.device) -> list[CosSin]:
        """For each band of a plan cos and sin ``[T, r / 2]`` of its queries, with the method's factor."""
        key = pad, table, device
        if key not in span.queries:
            span.queries[key] = _scaled(plan, table, self.method.query_factor(self.window, plan.stop), device)
        return span.queries[key]

    def new_keys(self, span: TokenSpan, table: Table, device: torch.device) -> list[CosSin]:
        """For each stored rotation cos and sin of the span's own keys, ``[T, r / 2]``, or ``[B, T, r / 2]`` padded."""
        key = None, table, device
        if key not in span.keys:
            pads = torch.tensor(span.padding)[:, None] if len(set(span.padding)) > 1 else span.padding[0]
            tokens = (torch.arange(span.past, span.past + span.tokens) - pads).clamp(min=0)
            span.keys[key] = self._keys(tokens, table, device)
        return span.keys[key]

    def all_keys(self, span: TokenSpan, pad: int, total: int, table: Table, device: torch.device) -> list[CosSin]:
        """For each stored rotation cos and sin ``[total, r / 2]`` of all keys, which dynamic angles rotate anew."""
        key = pad, table, device
        if key not in span.keys:
            span.keys[key] = self._keys(torch.arange(total), table, device)
        return span.keys[key]

    def single(self, token: int) -> Ranges:
        """The keys of ``AHEAD`` tokens that come one at a time, ``token`` among them; see ``DecodeTables``."""
        return self._cached_ranges(token - token % AHEAD)

    def decode(self, table: Table, token: int) -> DecodeTables:
        """All that ``AHEAD`` tokens see that come one at a time, ``token`` among them."""
        return self._cached_decode(table, token - token % AHEAD)

    def _decode_ahead(self, table: Table, start: int) -> DecodeTables:
        ranges, i, cpu = self.single(start), torch.arange(start, start + AHEAD), torch.device("cpu")
        factors = [self.method.query_factor(self.window, int(n) + 1) for n in i]
        by_token = torch.tensor(factors, dtype=torch.float32, device=cpu)[:, None]
        shown = sum((hi - lo for lo, hi in zip(ranges.plan.lo, ranges.plan.hi, strict=True)), torch.zeros_like(i))
        stops, positions = torch.zeros_like(i), i[:, None]
        if (chooser := self.chooser) is not None and (chosen := chooser.places(i)) is not None:
            stops = torch.where(i < chooser.selection.first_query, 0, chooser.selection.stops(i))
            positions = chosen
        return DecodeTables(
            start=start,
            ranges=ranges,
            queries=tuple(_scaled(ranges.plan, table, by_token, cpu)),
            keys=tuple(self._keys(i, table, cpu)),
            shown=shown.tolist(),
            stops=stops.tolist(),
            positions=positions,
        )

    def _keys(self, tokens: Tensor, table: Table, device: torch.device) -> list[CosSin]:
        """For each stored rotation cos and sin of the keys ``tokens``, of any shape."""
        return [cos_sin(table, to(tokens), device) for to in self.key_maps]

    def _computed(self, selection: Selection, start: int, stop: int) -> Ranges:
        bands = self.positions.all_bands(selection.kept(start, stop))
        plan = make_plan(bands, start, stop)
        return Ranges(plan, tuple(self.key_maps.index(bands[band].k_pos) for band in plan.bands))


def _scaled(plan: Plan, table: Table, factor: float | Tensor, device: torch.device) -> list[CosSin]:
    """cos and sin of a plan's queries, multiplied by their factor: one, or ``[T, 1]``."""
    angles = [cos_sin(table, positions, device) for positions in plan.q_pos]
    if not isinstance(factor, Tensor) and factor == 1:
        return angles
    return [(cos * factor, sin * factor) for cos, sin in angles]
