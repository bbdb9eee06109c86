"""Runs one method on a layer's queries, keys and values: rotate and store the new keys, then attend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, cast, get_args

import torch
from torch import Tensor

from longspan.attend.choosing import Chooser
from longspan.attend.observing import Observer
from longspan.attend.single import SingleStep
from longspan.attend.sinks import with_sinks
from longspan.attend.state import ForwardState, TokenSpan
from longspan.bands import KeyMap
from longspan.calibration import Calibration
from longspan.errors import CacheError
from longspan.index import equal_runs
from longspan.kernels import cpu
from longspan.kernels.banded import Impl, banded, make_plan
from longspan.methods import Method
from longspan.rope import Rope, Table, cos_sin
from longspan.selection.rows import Rows
from longspan.selection.selector import Selector
from longspan.store import Fetched, KVStore


@dataclass(frozen=True)
class _Layer:
    """What a layer brings to its attention."""

    rope: Rope
    scale: float
    softcap: float | None
    sinks: Tensor | None
    number: int


@dataclass(frozen=True)
class _View:
    """Consecutive rows of a store with equal padding."""

    rows: slice
    keys: list[Tensor]
    values: Tensor
    store: KVStore | None
    padding: int

    def ranges(self) -> tuple[list[Tensor], Tensor]:
        """Keys and values without padding, for a kernel that reads ranges of them on the queries' device."""
        if self.store is None or not self.store.apart:
            return [_after(x, self.padding) for x in self.keys], _after(self.values, self.padding)
        streams = [*range(len(self.keys)), None]
        *keys, values = (cast(Tensor, Fetched(self.store, n, self.rows, self.padding)) for n in streams)
        return keys, values


def _named(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Who names an implementation in torch's operations has scores and choices made by those too."""

    @wraps(call)
    def run(self: Attender, *args: Any, **options: Any) -> Tensor:
        if self.impl in ("auto", "compiled"):
            return call(self, *args, **options)
        with cpu.disabled():
            return call(self, *args, **options)

    return run


class Attender:
    """One resolved method at one window, for all layers of a model.

    Args:
        method: a resolved method.
        window: the trained window ``L``, in tokens.
        impl: which kernel runs; see ``longspan.kernels.banded``.
        calibration: reduced scores, for methods that choose keys by them.

    Raises:
        CalibrationError: the method asks for reduced scores that the calibration does not have.
        ValueError: the method sees chosen keys from positions outside this window.
    """

    def __init__(
        self, method: Method, window: int, impl: Impl = "auto", calibration: Calibration | None = None
    ) -> None:
        if impl not in get_args(Impl):
            raise ValueError(f"impl is one of {', '.join(get_args(Impl))}, not {impl!r}")
        method.check_calibration(calibration)
        method.check_reach(window)
        self.method, self.window, self.impl, self.calibration = method, window, impl, calibration
        self._dynamic = method.angles.dynamic
        self.chooser = Chooser(method, window, impl, calibration) if method.selects else None
        self.selection, self.positions = method.selection(window), method.positions(window)
        self.key_maps: list[KeyMap] = list(method.key_maps(window))
        if (chooser := self.chooser) is not None:
            scored = chooser.selection.scored_keys
            self.chosen_rotation = self.key_maps.index(chooser.positions.chosen_keys(chooser.selection.always()))
            self.scored_rotation = None if scored is None else self.key_maps.index(scored)
        self._static_tables: dict[Table, Table] = {}
        self._single = SingleStep(self)

    @property
    def stored_rotations(self) -> int:
        """How many rotations of each key the store holds; angles that follow the length keep one, unrotated."""
        return 1 if self._dynamic else len(self.key_maps)

    @property
    def observer(self) -> Observer | None:
        """Who sees what is chosen; nobody unless set, and never where keys are not chosen."""
        return self.chooser.observer if self.chooser is not None else None

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        if self.chooser is None:
            raise ValueError(f"{self.method.name} keeps keys by their index, so there are no choices to observe")
        self.chooser.observer = observer

    def new_index(self, layer: int, rope: Rope) -> Any:
        """What chooses keys for a layer's store and is kept in it; None where keys are not chosen.

        It takes in queries and keys whose channels are in the order of ``rope.pair``.
        """
        return self.chooser.selector(layer, rope) if self.chooser is not None else None

    @_named
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rope: Rope,
        *,
        scale: float,
        store: KVStore | None = None,
        padding: Sequence[int] | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        layer: int = 0,
        state: ForwardState | None = None,
    ) -> Tensor:
        """Attention of new tokens to the stored and the new ones.

        Args:
            q, k, v: ``[B, H, T, D]``, ``[B, Hkv, T, D]``, ``[B, Hkv, T, Dv]``, unrotated.
            rope: the layer's own rotation.
            scale, softcap, sinks: the layer's; see ``banded``.
            store: the layer's cache, appended to; without one the new tokens are all there is.
            padding: how many padding tokens each row begins with, those in the store counted in.
            layer: the layer's number, for methods and calibrations that tell layers apart.
            state: what the layers of this forward share; of this layer alone unless given.

        Returns:
            ``[B, H, T, Dv]``; rows of padding are zero.
        """
        if self.chooser is not None and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            raise RuntimeError(f"{self.method.name} chooses keys and gives no gradients; run it under torch.no_grad()")
        batch, _, tokens, _ = q.shape
        past = store.length if store is not None else 0
        pads = tuple(padding) if padding is not None else (0,) * batch
        if tokens == 1 and store is not None:
            done = self._single(q, k, v, rope, scale=scale, store=store, pads=pads, softcap=softcap)
            if done is not None:
                return with_sinks(*done, sinks)
        span = (state if state is not None else ForwardState()).span(past, tokens, pads)
        own = _Layer(rope.paired(), scale, softcap, sinks, layer)
        turned_q, turned_k = rope.pair(q), rope.pair(k)  # rotated in several ways each, so the order pays for itself
        new_keys = [turned_k] if self._dynamic else self._rotate_new(turned_k, own.rope, span)
        if store is None and self.chooser is not None:
            store = KVStore()  # an index has to live somewhere
        if store is not None:
            store.append(new_keys, v)
            keys, values = store.keys, store.values
            index: Any = store.index
            if index is None:
                index = store.index = self.new_index(layer, rope)
            if index is not None:
                # Chunk representations are made within the window, where dynamic angles are the model's own.
                inside = own.rope.with_table(self.table(rope.table, 0, span))
                index.extend(turned_q, turned_k, v, pads, inside, scale)
        else:
            keys, values = new_keys, v
        outs = []
        if len(set(pads)) == 1:
            return self._rows(turned_q, _View(slice(0, batch), keys, values, store, pads[0]), own, span)
        for a, b in equal_runs(pads):
            view = _View(slice(a, b), [x[a:b] for x in keys], values[a:b], store, pads[a])
            outs.append(self._rows(turned_q[a:b], view, own, span))
        return torch.cat(outs)

    def _rows(
        self,
        q: Tensor,
        held: _View,
        layer: _Layer,
        span: TokenSpan,
    ) -> Tensor:
        """The rows of a batch that begin with the same padding."""
        pad = held.padding
        skipped = min(max(pad - span.past, 0), span.tokens)  # queries that are padding themselves
        if skipped == span.tokens:
            return q.new_zeros(*q.shape[:3], held.values.shape[-1])
        start, total = span.past + skipped - pad, span.past + span.tokens - pad
        table = self.table(layer.rope.table, self.method.angles_at(self.window, span.tokens, total), span)
        rope = layer.rope.with_table(table)
        if pad not in span.plans:
            bands = self.positions.all_bands(self.selection.kept(start, total))
            plan = make_plan(bands, start, total)
            span.plans[pad] = plan, tuple(self.key_maps.index(bands[band].k_pos) for band in plan.bands)
        plan, numbers = span.plans[pad]
        here = pad, table, q.device
        if here not in span.query_turns:
            factor = self.method.query_factor(self.window, total)
            turns = [cos_sin(table, positions, q.device) for positions in plan.q_pos]
            span.query_turns[here] = [(cos * factor, sin * factor) for cos, sin in turns] if factor != 1 else turns
        keys, values = held.ranges()
        if self._dynamic:
            if held.store is not None and held.store.apart:
                raise CacheError(
                    f"{type(self.method.angles).__name__} turns every key at every step, and they are kept on tier "
                    f"{held.store.tier!r}; use kv_tier='device' or other angles"
                )
            if here not in span.key_turns:
                j = torch.arange(total)
                span.key_turns[here] = [cos_sin(table, to(j), q.device) for to in self.key_maps]
            keys = [rope.rotate_k(keys[0], *angles) for angles in span.key_turns[here]]
        q = _after(q, skipped)
        out, lse = banded(
            q,
            [keys[n] for n in numbers],
            values,
            plan,
            span.query_turns[here],
            rope,
            scale=layer.scale,
            softcap=layer.softcap,
            impl=self.impl,
        )
        if self.chooser is not None:
            assert held.store is not None
            # What is chosen is gathered where it lies, and only that is brought.
            stored = keys if self._dynamic or not held.store.apart else [_after(x, pad) for x in held.keys]
            scored = None if self.scored_rotation is None else stored[self.scored_rotation]
            rows = Rows(
                q=q,
                keys=stored[self.chosen_rotation],
                values=values if not held.store.apart else _after(held.values, pad),
                scored=scored,
                batch=held.rows,
                start=start,
                stop=total,
                rope=rope,
                scale=layer.scale,
                softcap=layer.softcap,
                layer=layer.number,
                padding=pad,
                table=partial(self.chooser.window_table, table, q.device),
                shared=span.shared,
            )
            self.chooser.add(out, lse, rows, cast(Selector, held.store.index))
        out = with_sinks(out, lse, layer.sinks)
        return torch.nn.functional.pad(out, (0, 0, skipped, 0)) if skipped else out

    def _rotate_new(self, k: Tensor, rope: Rope, span: TokenSpan) -> list[Tensor]:
        table = self.table(rope.table, 0, span)
        rope = rope.with_table(table)
        here = None, table, k.device
        if here not in span.key_turns:
            slots = torch.arange(span.past, span.past + span.tokens)
            if len(set(span.padding)) == 1:
                own = (slots - span.padding[0]).clamp(min=0)
            else:
                own = (slots[None, :] - torch.tensor(span.padding)[:, None]).clamp(min=0)
            span.key_turns[here] = [cos_sin(table, to(own), k.device) for to in self.key_maps]
        return [rope.rotate_k(k, *angles) for angles in span.key_turns[here]]

    def table(self, own: Table, total: int, span: TokenSpan | None = None) -> Table:
        """The angles that stand for a layer's ``own`` where there are ``total`` tokens; the same object every time.

        Angles that follow the length are kept by the ``span`` of a forward.
        """
        if self._dynamic:
            tables = span.tables if span is not None else {}
            if (total, own) not in tables:
                tables[total, own] = self.method.angles.table(own, self.window, total)
            return tables[total, own]
        if own not in self._static_tables:
            # By setdefault, so that threads that meet here get one object.
            self._static_tables.setdefault(own, self.method.angles.table(own, self.window, total))
        return self._static_tables[own]


def _after(x: Tensor, tokens: int) -> Tensor:
    """``x`` without its first tokens."""
    return x[:, :, tokens:] if tokens else x
