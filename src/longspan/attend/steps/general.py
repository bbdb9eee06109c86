"""Any number of new tokens: each part of the method is a kernel of its own."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from longspan.attend.layer import LayerCall
from longspan.attend.ragged import filled
from longspan.attend.sinks import with_sinks
from longspan.attend.state import TokenSpan
from longspan.attend.steps.choice import AlikeRows, BandsAttended, GeneralChoice
from longspan.attend.tables import Tables
from longspan.choosing.unit_index import equal_runs
from longspan.errors import CacheError, GradientError
from longspan.kernels.banded import banded
from longspan.kernels.dispatch import Impl
from longspan.memory import Fetched, KVStore
from longspan.rope import Rope


class GeneralStep:
    """Takes in and attends any number of new tokens of a layer.

    Args:
        tables: what queries see, of the method that runs.
        impl: which implementation runs; see ``longspan.kernels.dispatch``.
    """

    def __init__(self, tables: Tables, impl: Impl) -> None:
        self._tables, self._chooser, self._impl = tables, tables.chooser, impl
        self._dynamic = tables.method.angles.dynamic
        self._choice = None if tables.chooser is None else GeneralChoice(tables, tables.chooser)

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
            raise GradientError(f"{name} selects keys and does not support gradients; run it under torch.no_grad()")
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
        *keys, values = (*new_keys, v) if store is None else cast(list[Tensor], store.lying)
        return self._attend(paired_q, keys, values, store, rope, layer, span)

    def again(self, q: Tensor, values: Tensor, layer: LayerCall, store: KVStore) -> Tensor:
        """Attention of the newest tokens of a store once more, to other values.

        Args:
            q: ``[B, H, T, D]``, unrotated, of the last ``T`` tokens that the store holds.
            values: ``[B, Hkv, N, W]`` in q's dtype, where the store's own values lie; of all its tokens.

        Returns:
            ``[B, T, H, W]``; rows of padding are zero.
        """
        span = layer.state.span(store.length - q.shape[2], q.shape[2], layer.padding)
        *keys, _ = cast(list[Tensor], store.lying)
        return self._attend(layer.rope.pair(q), keys, values, store, layer.rope.paired(), layer, span, stored=False)

    def _attend(
        self,
        q: Tensor,
        keys: list[Tensor],
        values: Tensor,
        store: KVStore | None,
        rope: Rope,
        layer: LayerCall,
        span: TokenSpan,
        stored: bool = True,
    ) -> Tensor:
        """``[B, T, H, Dv]`` of queries ``[B, H, T, D]``; keys and values have their padding.

        Args:
            stored: whether the values are the store's own, if there is one.
        """
        tables, tokens, runs = self._tables, span.tokens, self._runs(layer, span)
        # Rows that are alike are seen from their first token on: their tables do not depend on the padding then.
        base = runs[0].padding if len(runs) == 1 else 0
        skipped = tokens - (runs[0].stop - runs[0].start) if len(runs) == 1 else 0
        if skipped == tokens or not any(run.start < run.stop for run in runs):
            return q.new_zeros(q.shape[0], q.shape[2], q.shape[1], values.shape[-1])
        if base:
            keys, values = [x[:, :, base:] for x in keys], values[:, :, base:]
        q = q[:, :, skipped:] if skipped else q
        if len(runs) == 1:
            run = runs[0]
            ranges, angles = tables.seen(span, run.padding, run.start, run.stop, run.table, q.device)
        else:
            row_tables = [run.table for run in runs for _ in range(run.rows.start, run.rows.stop)]
            ranges, angles = tables.unlike(span, row_tables, q.device)
        shown, shown_values = self._shown(keys, values, store, base)
        if self._dynamic:
            keys = shown = self._dynamic_keys(shown[0], store, runs, base, rope, span)
        out, lse = banded(
            q,
            [shown[n] for n in ranges.rotations],
            shown_values if stored else values.to(q.device),
            ranges.plan,
            angles,
            rope.with_table(runs[0].table),
            scale=layer.scale,
            softcap=layer.softcap,
            impl=self._impl,
        )
        if self._choice is not None and store is not None:
            self._choice.add(BandsAttended(q, out, lse, keys, values, base, store, rope, layer, span), runs)
        out = with_sinks(out, lse, layer.sinks).transpose(1, 2)
        return torch.nn.functional.pad(out, (0, 0, 0, 0, skipped, 0)) if skipped else out

    def _runs(self, layer: LayerCall, span: TokenSpan) -> list[AlikeRows]:
        tables, runs = self._tables, []
        for a, b, pad in equal_runs(layer.padding):
            stop = max(span.past + span.tokens - pad, 0)
            length = tables.method.angles_at(tables.window, span.tokens, stop)
            table = tables.angles(layer.rope.table, length, span)
            runs.append(AlikeRows(slice(a, b), pad, max(span.past - pad, 0), stop, table))
        return runs

    def _shown(
        self, keys: list[Tensor], values: Tensor, store: KVStore | None, base: int
    ) -> tuple[list[Tensor], Tensor]:
        """Keys and values for a kernel that reads ranges of them on the queries' device."""
        if store is None or not store.brought:
            return keys, values
        every, streams = slice(0, values.shape[0]), [*range(len(keys)), None]
        *fetched, fetched_values = (cast(Tensor, Fetched(store, n, every, base)) for n in streams)
        return fetched, fetched_values

    def _rotated(self, k: Tensor, rope: Rope, span: TokenSpan) -> list[Tensor]:
        """New keys ``[B, Hkv, T, D]`` in each stored rotation."""
        table = self._tables.angles(rope.table, 0, span)
        rope = rope.with_table(table)
        return [rope.rotate_k(k, *angles) for angles in self._tables.new_keys(span, table, k.device)]

    def _dynamic_keys(
        self, k: Tensor, store: KVStore | None, runs: list[AlikeRows], base: int, rope: Rope, span: TokenSpan
    ) -> list[Tensor]:
        """All keys ``[B, Hkv, N, D]``, stored unrotated, in each rotation under the angles of this length."""
        if store is not None and store.offloaded:
            raise CacheError(
                f"{type(self._tables.method.angles).__name__} rotates every key at every step, and the keys are on "
                f"tier {store.tier!r}; use kv_tier='device' or other angles"
            )
        rows = [self._tables.all_keys(span, run.padding, run.stop, run.table, k.device) for run in runs]
        if len(runs) == 1:
            return [rope.rotate_k(k, *one) for one in rows[0]]
        slots, counts = k.shape[2] - base, [run.rows.stop - run.rows.start for run in runs]
        every = [angles for angles, count in zip(rows, counts, strict=True) for _ in range(count)]
        return [
            rope.rotate_k(k, *(filled([angles[n][i] for angles in every], slots) for i in (0, 1)))
            for n in range(len(rows[0]))
        ]
