"""Runs one method on a layer's queries, keys and values: rotate and store the new keys, then attend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

import torch
from torch import Tensor

from longspan.bands import KeyMap
from longspan.kernels.banded import Impl, Plan, Turn, banded, make_plan
from longspan.methods import Method
from longspan.rope import Rope, Table
from longspan.store import KVStore


@dataclass
class _Step:
    """What all layers of one forward share: plans, and cos and sin by position."""

    past: int
    tokens: int
    padding: tuple[int, ...]
    plans: dict[int, Plan] = field(default_factory=dict)
    query_turns: dict[tuple[int, Table, torch.device], list[Turn]] = field(default_factory=dict)
    key_turns: dict[tuple[int | None, Table, torch.device], list[Turn]] = field(default_factory=dict)
    tables: dict[tuple[int, Table], Table] = field(default_factory=dict)


class Attender:
    """One resolved method at one window, for all layers of a model.

    Args:
        method: a resolved method.
        window: the trained window ``L``, in tokens.
        impl: which kernel runs; see ``longspan.kernels.banded``.
    """

    def __init__(self, method: Method, window: int, impl: Impl = "auto") -> None:
        if impl not in get_args(Impl):
            raise ValueError(f"impl is one of {', '.join(get_args(Impl))}, not {impl!r}")
        self.method, self.window, self.impl = method, window, impl
        self._bands = method.bands()
        self._dynamic = method.angles.dynamic
        self.key_maps: list[KeyMap] = list(dict.fromkeys(band.k_pos for band in self._bands))
        self._map_of = [self.key_maps.index(band.k_pos) for band in self._bands]
        self._static_tables: dict[Table, Table] = {}
        self._step = _Step(0, 0, ())

    @property
    def stored_rotations(self) -> int:
        """How many rotations of each key the store holds; angles that follow the length keep one, unrotated."""
        return 1 if self._dynamic else len(self.key_maps)

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
    ) -> Tensor:
        """Attention of new tokens to the stored and the new ones.

        Args:
            q, k, v: ``[B, H, T, D]``, ``[B, Hkv, T, D]``, ``[B, Hkv, T, Dv]``, unrotated.
            rope: the layer's own rotation.
            scale, softcap, sinks: the layer's; see ``banded``.
            store: the layer's cache, appended to; without one the new tokens are all there is.
            padding: how many padding tokens each row begins with, those in the store counted in.

        Returns:
            ``[B, H, T, Dv]``; rows of padding are zero.
        """
        batch, _, tokens, _ = q.shape
        past = store.length if store is not None else 0
        pads = tuple(padding) if padding is not None else (0,) * batch
        if (self._step.past, self._step.tokens, self._step.padding) != (past, tokens, pads):
            self._step = _Step(past, tokens, pads)
        new_keys = [k] if self._dynamic else self._rotate_new(k, rope)
        if store is not None:
            store.append(new_keys, v)
            keys, values = store.keys, store.values
        else:
            keys, values = new_keys, v
        runs = _equal_runs(pads)
        outs = [
            self._rows(q[a:b], [x[a:b] for x in keys], values[a:b], rope, pads[a], scale, softcap, sinks)
            for a, b in runs
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _rows(
        self,
        q: Tensor,
        keys: list[Tensor],
        values: Tensor,
        rope: Rope,
        pad: int,
        scale: float,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """The rows of a batch that begin with the same padding."""
        step = self._step
        skipped = min(max(pad - step.past, 0), step.tokens)  # queries that are padding themselves
        if skipped == step.tokens:
            return q.new_zeros(*q.shape[:3], values.shape[-1])
        total = step.past + step.tokens - pad
        table = self._table(rope.table, total)
        rope = rope.with_table(table)
        if pad not in step.plans:
            step.plans[pad] = make_plan(self._bands, step.past + skipped - pad, total)
        plan = step.plans[pad]
        here = pad, table, q.device
        if here not in step.query_turns:
            factor = self.method.query_factor(self.window, total)
            step.query_turns[here] = [_turn(table, positions, q.device, factor) for positions in plan.q_pos]
        if self._dynamic:
            raw = keys[0][:, :, pad:]
            if here not in step.key_turns:
                j = torch.arange(total)
                step.key_turns[here] = [_turn(table, to(j), q.device) for to in self.key_maps]
            keys = [rope.turn_k(raw, *turn) for turn in step.key_turns[here]]
        else:
            keys = [x[:, :, pad:] for x in keys]
        out = banded(
            q[:, :, skipped:],
            [keys[self._map_of[band]] for band in plan.bands],
            values[:, :, pad:],
            plan,
            step.query_turns[here],
            rope,
            scale=scale,
            softcap=softcap,
            sinks=sinks,
            impl=self.impl,
        )
        return torch.nn.functional.pad(out, (0, 0, skipped, 0)) if skipped else out

    def _rotate_new(self, k: Tensor, rope: Rope) -> list[Tensor]:
        step = self._step
        table = self._table(rope.table, 0)
        rope = rope.with_table(table)
        here = None, table, k.device
        if here not in step.key_turns:
            slots = torch.arange(step.past, step.past + step.tokens)
            if len(set(step.padding)) == 1:
                own = (slots - step.padding[0]).clamp(min=0)
            else:
                own = (slots[None, :] - torch.tensor(step.padding)[:, None]).clamp(min=0)
            step.key_turns[here] = [_turn(table, to(own), k.device) for to in self.key_maps]
        return [rope.turn_k(k, *turn) for turn in step.key_turns[here]]

    def _table(self, own: Table, total: int) -> Table:
        if not self._dynamic:
            if own not in self._static_tables:
                self._static_tables[own] = self.method.angles.table(own, self.window, total)
            return self._static_tables[own]
        tables = self._step.tables
        if (total, own) not in tables:
            tables[total, own] = self.method.angles.table(own, self.window, total)
        return tables[total, own]


@torch.inference_mode(False)  # kept for later calls, which may be outside inference mode and follow gradients
def _turn(table: Table, positions: Tensor, device: torch.device, factor: float = 1.0) -> Turn:
    # Layers may lie on several devices, and the model's frequencies on one of them.
    cos, sin = (x.to(device) for x in table(positions))
    return (cos, sin) if factor == 1.0 else (cos * factor, sin * factor)


def _equal_runs(pads: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive rows with equal padding, as ``(first, one past the last)``: views of the cache, never copies."""
    edges = [0, *(n for n in range(1, len(pads)) if pads[n] != pads[n - 1]), len(pads)]
    return list(zip(edges[:-1], edges[1:], strict=True))
