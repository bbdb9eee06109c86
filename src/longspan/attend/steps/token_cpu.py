"""One new token of a layer in one call of C, if C has all parts of the method."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from longspan.attend.ahead import AHEAD, TokenTables
from longspan.attend.layer import LayerCall
from longspan.attend.observing import Observer
from longspan.attend.sinks import with_sinks
from longspan.attend.steps.bound import BoundKernels, BoundRows
from longspan.attend.tables import Tables
from longspan.choosing.selector import Chosen, Selector
from longspan.choosing.unit_index import equal_runs
from longspan.kernels.decode import (
    BandRange,
    ChosenPositions,
    DecodeKernel,
    DecodeRows,
    ScoreSpec,
    unsupported_reason,
)
from longspan.kernels.dispatch import Impl, runs_in_c
from longspan.memory import JoinedStores, KVStore, Placement, Slot
from longspan.rope import Rope


class TokenStep:
    """Takes in and attends tokens that come one at a time, for all layers of a model.

    Args:
        tables: what queries see, of the method that runs.
        impl: which implementation runs; see ``longspan.kernels.dispatch``.
    """

    def __init__(self, tables: Tables, impl: Impl) -> None:
        self._tables, self._chooser = tables, tables.chooser
        self._never = self._method_reason(impl)
        self._bound: WeakKeyDictionary[Placement, BoundKernels] = WeakKeyDictionary()
        self._calls: WeakKeyDictionary[JoinedStores, DecodeRows] = WeakKeyDictionary()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall, store: KVStore) -> Tensor | str:
        """Attention of one new token.

        Args:
            q, k, v: ``[B, H, 1, D]``, ``[B, Hkv, 1, D]``, ``[B, Hkv, 1, Dv]``, unrotated.
            store: appended to.

        Returns:
            ``[B, 1, H, Dv]``, or the reason why one call of C cannot compute it; then the token was not taken in.
        """
        if (reason := self._never or self._recording_reason()) is not None:
            return reason
        ready = self._ready(q, k, v, layer, layer.padding, store)
        if isinstance(ready, str):
            return ready
        slot, bound = ready
        if not bound.call.takes(q, k, v):
            # The general step raises the error that says what does not fit.
            return "the queries, keys and values are not like those of the tokens before"
        out = bound.call(q, k, v, [run.token(slot.place, slot.kept_at) for run in bound.runs])
        self._stored(store, slot, bound, layer, 0)
        return _with_sinks(out, bound.runs, layer)

    def joined(
        self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall, joined: JoinedStores
    ) -> tuple[Tensor, list[int]]:
        """Attention of one new token of each of several stores, in one call of C for all that C can compute.

        Args:
            q, k, v: ``[B, H, 1, D]``, ``[B, Hkv, 1, D]``, ``[B, Hkv, 1, Dv]``, unrotated.
            joined: appended to.

        Returns:
            ``[B, 1, H, Dv]``, and the rows that C cannot compute: their tokens were not taken in and their outputs are
            not set.
        """
        out, every = q.new_empty(len(q), 1, q.shape[1], v.shape[3]), range(len(q))
        if (self._never or self._recording_reason()) is not None:
            return out, [*every]
        rows, ready, like = [], [], (q.dtype, (q.shape[1:], k.shape[1:], v.shape[1:]))
        for row, (store, pad) in enumerate(zip(joined.stores, layer.padding, strict=True)):
            one = self._ready(q, k, v, layer, (pad,), store)
            if not isinstance(one, str) and one[1].like == like:
                rows.append(row)
                ready.append((store, *one))
        call = self._call_of(joined, [run.kernel for _, _, bound in ready for run in bound.runs])
        if len(rows) < len(q):
            q, k, v = q[rows], k[rows], v[rows]
        if call is None or not call.takes(q, k, v):
            return out, [*every]
        runs = [run for _, _, bound in ready for run in bound.runs]
        found = call(q, k, v, [run.token(slot.place, slot.kept_at) for _, slot, bound in ready for run in bound.runs])
        for row, (store, slot, bound) in zip(rows, ready, strict=True):
            self._stored(store, slot, bound, layer, row)
        found = _with_sinks(found, runs, layer)
        if len(rows) == len(out):
            return found, []
        out[rows] = found
        return out, [row for row in every if row not in rows]

    def _recording_reason(self) -> str | None:
        observer = None if self._chooser is None or self._chooser.observer is None else self._chooser.recording()
        if observer is not None and observer.scores:
            return "a recording needs the scores, which the fused kernel does not store"
        return None

    def _ready(
        self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall, padding: tuple[int, ...], store: KVStore
    ) -> tuple[Slot, BoundKernels] | str:
        """Memory for a store's next token and the kernels that take it in, or why C cannot."""
        slot = store.reserve_one()
        if slot is None:
            if store.offloaded:
                return f"keys and values are on tier {store.tier!r}"
            return "the token needs memory elsewhere" if store.length else "the store is empty"
        past, bound = slot.place, self._bound.get(store.placement)
        if bound is None or bound.layer != (layer.rope, layer.scale, layer.softcap, padding):
            bound = None
        if bound is None or not bound.start <= past < bound.stop:
            made = self._bind(q, k, v, layer, padding, store, () if bound is None else bound.runs)
            if isinstance(made, str):
                return made
            bound = self._bound[store.placement] = made
        return slot, bound

    def _call_of(self, joined: JoinedStores, kernels: list[DecodeKernel]) -> DecodeRows | None:
        """The call that runs these kernels, kept while they are the same; None if there are none."""
        call = self._calls.get(joined)
        if kernels and (call is None or call.kernels != kernels):
            call = self._calls[joined] = DecodeRows(kernels)
        return call if kernels else None

    def _stored(self, store: KVStore, slot: Slot, bound: BoundKernels, layer: LayerCall, row: int) -> None:
        """The token was written to its slot: its store counts it, and its choice is handed over.

        Args:
            row: the batch row of the store's first one.
        """
        store.commit_one()
        if slot.completes:
            self._summarise(store, layer)
        observer = None if self._chooser is None or self._chooser.observer is None else self._chooser.recording()
        if observer is not None:
            self._observe(observer, bound.runs, slot.place, layer, row)

    def _summarise(self, store: KVStore, layer: LayerCall) -> None:
        """Summarise the units that the token filled, which no token before the next one chooses from."""
        assert self._chooser is not None
        selector = self._chooser.selector_in(store, layer.number, layer.rope)
        before = _lie(selector.memory)
        rope = layer.rope.paired().with_table(self._tables.angles(layer.rope.table))
        selector.summarise(rope, layer.scale)
        if _lie(selector.memory) != before:
            self._bound.pop(store.placement, None)

    def layer_reason(self, rope: Rope, number: int, dtype: torch.dtype, device: torch.device) -> str | None:
        """Why no token of a layer can, whatever is stored, or None; for reports."""
        selector = None if self._chooser is None else self._chooser.selector(number, rope)
        like = torch.empty(0, rope.head_dim, dtype=dtype, device=device)
        return self._never or self._kernel_reason(rope, selector, like)

    def _kernel_reason(self, rope: Rope, selector: Selector | None, *tensors: Tensor) -> str | None:
        """Why C lacks a part of what this rotation, this selector and a layer's queries, keys and values take."""
        if selector is not None and not selector.in_one_call(self._tables.angles(rope.table)):
            return "C has no single-token kernel for its scores, or for these under its angles or positions"
        return unsupported_reason(rope, *tensors)

    def _method_reason(self, impl: Impl) -> str | None:
        method, chooser = self._tables.method, self._chooser
        if not runs_in_c(impl):
            return f"impl={impl!r} is set"
        if method.angles.dynamic:
            return f"the angles of {method.name} follow the length, so every key is rotated at every step"
        if chooser is not None and chooser.across is not None:
            return "the scores of a layer's heads are summed over ranks"
        if chooser is not None and chooser.places(torch.zeros(1, dtype=torch.int64)) is None:
            return "the positions of chosen keys depend on which keys are chosen"
        return None

    def _observe(self, observer: Observer, runs: Sequence[BoundRows], past: int, layer: LayerCall, row: int) -> None:
        """Hand over what the token chose that was just taken in."""
        assert self._chooser is not None
        selection = self._chooser.selection
        for run in runs:
            token, units = past - run.padding, run.kernel.chosen
            if units is not None and run.tables.stops[token - run.tables.start]:
                chosen = Chosen(units if selection.by_query_chunk else units[:, :, None], None)
                about = {"layer": layer.number, "row": row + run.first, "start": token, "padding": run.padding}
                observer.add((token, token + 1), selection, chosen, **about)

    def _bind(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: LayerCall,
        pads: tuple[int, ...],
        store: KVStore,
        known: Sequence[BoundRows],
    ) -> BoundKernels | str:
        """Kernels for the next tokens, or why C cannot compute them; of ``known`` ones those stay that serve now."""
        rope, past = layer.rope, store.length
        if max(pads) > past:
            return "a row has only padding so far"
        selector = None if self._chooser is None else self._chooser.selector_in(store, layer.number, rope)
        if (reason := self._kernel_reason(rope, selector, q, k, v)) is not None:
            return reason
        if store.coded and (self._tables.scored_rotation is not None or any(pads)):
            return "keys that are scored, or behind padding, are in int8"
        runs = []
        for n, (a, b, pad) in enumerate(equal_runs(pads)):
            if known and known[n].start <= past < known[n].stop:
                runs.append(known[n])
                continue
            tables = self._tables.token(self._tables.angles(rope.table), past - pad)
            start, stop = tables.start + pad, tables.start + AHEAD + pad
            kernel, chooses = self._kernel(store, slice(a, b), pad, layer, q.shape[1], tables, selector)
            if not chooses:  # good until a token has to
                stop = min([stop, *(start + n for n, last in enumerate(tables.stops) if last)])
            assert start <= past < stop  # a token that has something to choose from has entries to choose by
            runs.append(BoundRows(start, stop, a, pad, tables, kernel))
        call, layer_of = DecodeRows([run.kernel for run in runs]), (rope, layer.scale, layer.softcap, pads)
        start, stop = max(run.start for run in runs), min(run.stop for run in runs)
        return BoundKernels(start, stop, tuple(runs), call, layer_of)

    def _kernel(
        self,
        store: KVStore,
        rows: slice,
        pad: int,
        layer: LayerCall,
        heads: int,
        tables: TokenTables,
        selector: Selector | None,
    ) -> tuple[DecodeKernel, bool]:
        """The kernel of the next tokens of rows with equal padding, and whether it chooses."""
        rope, ranges = layer.rope, tables.ranges
        table = self._tables.angles(rope.table)
        *keys, values = store.tails if store.coded else [x[rows, :, pad:] for x in store.allocated]
        scoring: ScoreSpec | None = None
        kept: list[Tensor | None] = [None] * 3
        if selector is not None and self._chooser is not None:
            scored = self._tables.scored_rotation
            assert tables.positions is not None  # see ``_method_reason``
            positions = ChosenPositions(
                self._tables.chosen_rotation,
                tables.positions,
                self._chooser.window_table(table, torch.device("cpu")),
                self._chooser.positions.stored_in(self._chooser.selection.always()),
            )
            scored_keys = None if scored is None else keys[scored]
            scoring = selector.scoring(rows, pad, scored_keys, heads, values.shape[1], positions)
            inputs = [x[rows] for x in selector.input_copies]
            if inputs:  # queries, keys and values, or keys alone
                kept = [*inputs] if len(inputs) == 3 else [None, *inputs, None]
        plan = ranges.plan
        bands = zip(plan.lo, plan.hi, tables.queries, ranges.rotations, strict=True)
        kernel = DecodeKernel(
            keys=keys,
            values=values,
            key_cos_sin=tables.keys,
            bands=[BandRange(low=lo, high=hi, cos_sin=angles, rotation=n) for lo, hi, angles, n in bands],
            rope=rope.paired().with_table(table),
            order=rope.order,
            heads=heads,
            scale=layer.scale,
            softcap=layer.softcap,
            kept=kept,
            scoring=scoring,
            codes=store.codes,
        )
        return kernel, scoring is not None or selector is None


def _with_sinks(out: Tensor, runs: Sequence[BoundRows], layer: LayerCall) -> Tensor:
    """``with_sinks`` of ``out`` ``[B, 1, H, Dv]``, whose rows these runs computed last."""
    if layer.sinks is None:
        return out
    lse = torch.cat([run.kernel.lse for run in runs])
    return with_sinks(out.transpose(1, 2), lse, layer.sinks).transpose(1, 2)


def _lie(tensors: Sequence[Tensor]) -> list[tuple[int, torch.Size]]:
    """Where tensors lie and how large they are: memory may grow in place."""
    return [(x.data_ptr(), x.shape) for x in tensors]
