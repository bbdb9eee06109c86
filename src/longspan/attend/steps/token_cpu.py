"""One new token of a layer in one call of C, where C has all parts of the method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from longspan.attend.ahead import AHEAD, TokenTables
from longspan.attend.layer import LayerCall
from longspan.attend.observing import Observer
from longspan.attend.sinks import with_sinks
from longspan.attend.tables import Tables
from longspan.index import equal_runs
from longspan.kernels.decode import (
    BandRange,
    ChosenPositions,
    DecodeKernel,
    DecodeRows,
    ScoreSpec,
    Token,
    unsupported_reason,
)
from longspan.kernels.dispatch import Impl
from longspan.rope import Rope
from longspan.selection.selector import Chosen, Selector
from longspan.store import KVStore, Placement


@dataclass(frozen=True, eq=False, slots=True)
class _BoundRows:
    """Consecutive batch rows from ``first`` on that begin with equal padding, and the kernel of their next tokens.

    It serves them while ``start ≤ past < stop``.
    """

    start: int
    stop: int
    first: int
    padding: int
    tables: TokenTables
    kernel: DecodeKernel

    def token(self, past: int, kept_at: int) -> Token:
        """The kernel's inputs besides queries, keys and values for the token after ``past`` stored slots."""
        token, tables = past - self.padding, self.tables
        ahead = token - tables.start
        return token, ahead, kept_at, tables.stops[ahead], tables.shown[ahead]


@dataclass(frozen=True, eq=False, slots=True)
class BoundKernels:
    """The kernels of a store's next tokens, which hold the addresses of its memory, and what they were made for.

    They serve all rows while ``start ≤ past < stop``.

    Attributes:
        call: runs them all.
        layer: of the call that they were made in.
    """

    start: int
    stop: int
    runs: tuple[_BoundRows, ...]
    call: DecodeRows
    layer: tuple[Rope, float, float | None, tuple[int, ...]]


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

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall, store: KVStore) -> Tensor | str:
        """Attention of one new token.

        Args:
            q, k, v: ``[B, H, 1, D]``, ``[B, Hkv, 1, D]``, ``[B, Hkv, 1, Dv]``, unrotated.
            store: appended to.

        Returns:
            ``[B, 1, H, Dv]``, or the reason why one call of C cannot compute it; then the token was not taken in.
        """
        if self._never is not None:
            return self._never
        observer = None if self._chooser is None or self._chooser.observer is None else self._chooser.recording()
        if observer is not None and observer.scores:
            return "a recording needs the scores, which the fused kernel does not store"
        slot = store.reserve_one()
        if slot is None:
            if store.offloaded:
                return f"keys and values are on tier {store.tier!r}"
            return "the token needs memory elsewhere" if store.length else "the store is empty"
        past, bound = slot.place, self._bound.get(store.placement)
        if bound is None or bound.layer != (layer.rope, layer.scale, layer.softcap, layer.padding):
            bound = None
        if bound is None or not bound.start <= past < bound.stop:
            made = self._bind(q, k, v, layer, store, () if bound is None else bound.runs)
            if isinstance(made, str):
                return made
            bound = self._bound[store.placement] = made
        if not bound.call.takes(q, k, v):
            # The general step raises the error that says what does not fit.
            return "the queries, keys and values are not like those of the tokens before"
        out = bound.call(q, k, v, [run.token(past, slot.kept_at) for run in bound.runs])
        store.commit_one()
        if slot.completes:
            self._summarise(store, layer)
        if observer is not None:
            self._observe(observer, bound.runs, past, layer)
        if layer.sinks is None:
            return out
        lse = torch.cat([run.kernel.lse for run in bound.runs])
        return with_sinks(out.transpose(1, 2), lse, layer.sinks).transpose(1, 2)

    def _summarise(self, store: KVStore, layer: LayerCall) -> None:
        """Summarise the units that the token filled, which no token before the next one chooses from."""
        assert self._chooser is not None
        selector = self._chooser.selector_in(store, layer.number, layer.rope)
        before = [x.data_ptr() for x in selector.memory]
        rope = layer.rope.paired().with_table(self._tables.angles(layer.rope.table))
        selector.summarise(rope, layer.scale)
        if [x.data_ptr() for x in selector.memory] != before:
            del self._bound[store.placement]

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
        if impl not in ("auto", "compiled"):
            return f"impl={impl!r} is set"
        if method.angles.dynamic:
            return f"the angles of {method.name} follow the length, so every key is rotated at every step"
        if chooser is not None and chooser.across is not None:
            return "the scores of a layer's heads are summed over ranks"
        if chooser is not None and chooser.places(torch.zeros(1, dtype=torch.int64)) is None:
            return "the positions of chosen keys depend on which keys are chosen"
        return None

    def _observe(self, observer: Observer, runs: Sequence[_BoundRows], past: int, layer: LayerCall) -> None:
        """Hand over what the token chose that was just taken in."""
        assert self._chooser is not None
        selection = self._chooser.selection
        for run in runs:
            token, units = past - run.padding, run.kernel.chosen
            if units is not None and run.tables.stops[token - run.tables.start]:
                chosen = Chosen(units if selection.by_query_chunk else units[:, :, None], None)
                about = {"layer": layer.number, "row": run.first, "start": token, "padding": run.padding}
                observer.add((token, token + 1), selection, chosen, **about)

    def _bind(
        self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall, store: KVStore, known: Sequence[_BoundRows]
    ) -> BoundKernels | str:
        """Kernels for the next tokens, or why C cannot compute them; of ``known`` ones those stay that serve now."""
        rope, pads, past = layer.rope, layer.padding, store.length
        if max(pads) > past:
            return "a row has only padding so far"
        selector = None if self._chooser is None else self._chooser.selector_in(store, layer.number, rope)
        if (reason := self._kernel_reason(rope, selector, q, k, v)) is not None:
            return reason
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
            runs.append(_BoundRows(start, stop, a, pad, tables, kernel))
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
        *keys, values = (x[rows, :, pad:] for x in store.allocated)
        scoring: ScoreSpec | None = None
        kept: list[Tensor | None] = [None] * 3
        if selector is not None and self._chooser is not None:
            scored = self._tables.scored_rotation
            assert tables.positions is not None  # see ``_method_reason``
            positions = ChosenPositions(
                self._tables.chosen_rotation, tables.positions, self._chooser.window_table(table, torch.device("cpu"))
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
        )
        return kernel, scoring is not None or selector is None
