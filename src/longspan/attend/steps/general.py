"""Any number of new tokens: each part of the method is a kernel of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from longspan.attend.layer import LayerCall
from longspan.attend.sinks import with_sinks
from longspan.attend.state import TokenSpan
from longspan.attend.tables import Tables
from longspan.errors import CacheError
from longspan.index import equal_runs
from longspan.kernels.banded import banded
from longspan.kernels.dispatch import Impl
from longspan.rope import Rope
from longspan.selection.queries import QueryBlock
from longspan.store import Fetched, KVStore


@dataclass(frozen=True)
class _View:
    """Consecutive batch rows of a store with equal padding.

    Attributes:
        rows: of the batch.
        keys: each stored rotation, ``[B, Hkv, N, D]``, where they lie, without padding.
        values: ``[B, Hkv, N, Dv]``, like them.
        store: that they are in; None where the new tokens are all.
        padding: tokens at the start that are none.
    """

    rows: slice
    keys: list[Tensor]
    values: Tensor
    store: KVStore | None
    padding: int

    def ranges(self) -> tuple[list[Tensor], Tensor]:
        """Keys and values for a kernel that reads ranges of them on the queries' device."""
        if self.store is None or not self.store.offloaded:
            return self.keys, self.values
        streams = [*range(len(self.keys)), None]
        *keys, values = (cast(Tensor, Fetched(self.store, n, self.rows, self.padding)) for n in streams)
        return keys, values


class GeneralStep:
    """Takes in and attends any number of new tokens of a layer.

    Args:
        tables: what queries see, of the method that runs.
        impl: which implementation runs; see ``longspan.kernels.dispatch``.
    """

    def __init__(self, tables: Tables, impl: Impl) -> None:
        self._tables, self._chooser, self._impl = tables, tables.chooser, impl
        self._dynamic = tables.method.angles.dynamic

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall, store: KVStore | None) -> Tensor:
        """Attention of new tokens to the stored and the new ones.

        Args:
            q, k, v: ``[B, H, T, D]``, ``[B, Hkv, T, D]``, ``[B, Hkv, T, Dv]``, unrotated.
            store: appended to; without one the new tokens are all.

        Returns:
            ``[B, T, H, Dv]``; rows of padding are zero.
        """
        if self._chooser is not None and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            name = self._tables.method.name
            raise RuntimeError(f"{name} selects keys and does not support gradients; run it under torch.no_grad()")
        pads = layer.padding
        span = layer.state.span(store.length if store is not None else 0, q.shape[2], pads)
        rope = layer.rope.paired()
        paired_q, paired_k = layer.rope.pair(q), layer.rope.pair(k)  # rotated in several ways each, which repays it
        new_keys = [paired_k] if self._dynamic else self._rotated(paired_k, rope, span)
        if store is None and self._chooser is not None:
            store = KVStore()  # an index has to live somewhere
        if store is not None:
            store.append(new_keys, v)
            if self._chooser is not None:
                # Chunk representations are computed within the window, where dynamic angles are the model's own.
                inside = rope.with_table(self._tables.angles(layer.rope.table, 0, span))
                selector = self._chooser.selector_in(store, layer.number, layer.rope)
                selector.extend(paired_q, paired_k, v, pads, inside, layer.scale)
        keys, values = (new_keys, v) if store is None else (store.keys, store.values)
        if not any(pads):
            return self._attend(paired_q, _View(slice(0, len(pads)), keys, values, store, 0), rope, layer, span)
        outs = []
        for a, b, pad in equal_runs(pads):
            view = _View(slice(a, b), [x[a:b, :, pad:] for x in keys], values[a:b, :, pad:], store, pad)
            outs.append(self._attend(paired_q[a:b], view, rope, layer, span))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _attend(self, q: Tensor, view: _View, rope: Rope, layer: LayerCall, span: TokenSpan) -> Tensor:
        """``[B, T, H, Dv]`` of queries ``[B, H, T, D]``: batch rows that begin with the same padding."""
        pad, tables = view.padding, self._tables
        skipped = min(max(pad - span.past, 0), span.tokens)  # queries that are padding themselves
        if skipped == span.tokens:
            return q.new_zeros(q.shape[0], q.shape[2], q.shape[1], view.values.shape[-1])
        start, total = span.past + skipped - pad, span.past + span.tokens - pad
        length = tables.method.angles_at(tables.window, span.tokens, total)
        table = tables.angles(layer.rope.table, length, span)
        rope = rope.with_table(table)
        ranges = tables.ranges(span, pad, start, total, q.device)
        keys, values = view.ranges()
        if self._dynamic:
            keys = self._dynamic_keys(keys[0], view, rope, span, total)
        q = q[:, :, skipped:] if skipped else q
        out, lse = banded(
            q,
            [keys[n] for n in ranges.rotations],
            values,
            ranges.plan,
            tables.queries(span, pad, ranges.plan, table, q.device),
            rope,
            scale=layer.scale,
            softcap=layer.softcap,
            impl=self._impl,
        )
        if self._chooser is not None:
            assert view.store is not None
            # Chosen keys are gathered where they lie, and only those are brought.
            stored = keys if self._dynamic else view.keys
            queries = QueryBlock(
                q=q,
                keys=stored[tables.chosen_rotation],
                values=view.values,
                scored=None if tables.scored_rotation is None else stored[tables.scored_rotation],
                batch=view.rows,
                start=start,
                stop=total,
                rope=rope,
                scale=layer.scale,
                softcap=layer.softcap,
                layer=layer.number,
                padding=pad,
                table=partial(self._chooser.window_table, table, q.device),
                shared=span.shared,
            )
            self._chooser.add(out, lse, queries, self._chooser.selector_in(view.store, layer.number, layer.rope))
        out = with_sinks(out, lse, layer.sinks).transpose(1, 2)
        return torch.nn.functional.pad(out, (0, 0, 0, 0, skipped, 0)) if skipped else out

    def _rotated(self, k: Tensor, rope: Rope, span: TokenSpan) -> list[Tensor]:
        """New keys ``[B, Hkv, T, D]`` in each stored rotation."""
        table = self._tables.angles(rope.table, 0, span)
        rope = rope.with_table(table)
        return [rope.rotate_k(k, *angles) for angles in self._tables.new_keys(span, table, k.device)]

    def _dynamic_keys(self, k: Tensor, view: _View, rope: Rope, span: TokenSpan, total: int) -> list[Tensor]:
        """All keys ``[B, Hkv, N, D]``, stored unrotated, in each rotation under the angles of this length."""
        if view.store is not None and view.store.offloaded:
            raise CacheError(
                f"{type(self._tables.method.angles).__name__} rotates every key at every step, and the keys are on "
                f"tier {view.store.tier!r}; use kv_tier='device' or other angles"
            )
        angles = self._tables.all_keys(span, view.padding, total, rope.table, k.device)
        return [rope.rotate_k(k, *one) for one in angles]
