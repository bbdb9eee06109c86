"""One new token of a layer in one call of C, where C has all parts of the method; else each part has its own call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from longspan.index import equal_runs
from longspan.kernels import cpu
from longspan.kernels.banded import make_plan
from longspan.kernels.decode import BandRange, ChosenPositions, DecodeKernel
from longspan.rope import CosSin, Rope, Table, cos_sin
from longspan.store import KVStore

if TYPE_CHECKING:
    from longspan.attend.attender import Attender

_AHEAD = 64  # tokens that ranges and angles are made for at once
_RUNS = 64  # of so many tokens that are kept, for rows of unequal padding among others


@dataclass(frozen=True, eq=False)
class _Ahead:
    """What ``_AHEAD`` tokens of a row see whatever they choose, for all layers with the same angles.

    Attributes:
        bands: as the kernel takes them.
        turns: cos and sin of the new keys, for each stored rotation.
        seen: how many keys the bands of each token show.
        stops: one past the last unit that each token chooses from, 0 where it chooses none.
        positions: ``[_AHEAD, m]`` or ``[1, m]``, where it sees its units from.
    """

    bands: list[BandRange]
    turns: list[CosSin]
    seen: list[int]
    stops: list[int]
    positions: Tensor


@dataclass(frozen=True, eq=False)
class _Made:
    """The kernel of some rows of a store, and what it was made from."""

    given: tuple[Any, ...]
    blocks: list[object]
    kernel: DecodeKernel

    def serves(self, given: tuple[Any, ...], blocks: list[object]) -> bool:
        """Whether that is still the same."""
        same = len(blocks) == len(self.blocks) and all(a is b for a, b in zip(blocks, self.blocks, strict=True))
        return same and self.given == given

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a copy of the store lies elsewhere


class SingleStep:
    """Takes in tokens that come one at a time, for all layers of a model.

    Args:
        attender: whose method it runs.
    """

    def __init__(self, attender: Attender) -> None:
        method, chooser = attender.method, attender.chooser
        self._attender, self._chooser = attender, chooser
        self._possible = attender.impl in ("auto", "compiled") and not method.angles.dynamic
        self._possible &= chooser is None or chooser.places(torch.zeros(1, dtype=torch.int64)) is not None
        self._selection = attender.selection.alone()
        self._ahead: dict[tuple[Table, int], _Ahead] = {}
        self._lock = Lock()

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rope: Rope,
        *,
        scale: float,
        store: KVStore,
        pads: Sequence[int],
        softcap: float | None,
    ) -> tuple[Tensor, Tensor] | None:
        """What ``Attender`` is asked, without sinks.

        Returns:
            ``[B, H, 1, Dv]``, and the log-sum-exp ``[B, H, 1]``, which is written over at the next token. None where
            this token has to go the longer way; then it was not taken in.
        """
        past, index, chooser = store.length, cast(Any, store.index), self._chooser
        if not self._possible or not q.is_cpu or q.dtype not in cpu.KINDS:
            return None
        if not past or max(pads) > past or store.apart:
            return None
        if rope.norm_q is not None or rope.norm_k is not None or cpu.unavailable_reason() is not None:
            return None
        table = self._attender.table(rope.table, 0)
        if chooser is not None and (index is None or chooser.observer is not None or not index.in_one_call(table)):
            return None
        if index is not None and not index.room_for_one():
            return None
        if past == store.capacity:
            store.reserve(past + 1)
        blocks = store.blocks if index is None else store.blocks + index.blocks
        chosen_from = chooser is not None and index.has_entries
        held = store.made or {}
        runs, made = equal_runs(pads), {}
        for rows in runs:
            token = past - pads[rows[0]]
            ahead = self._look(table, token - token % _AHEAD)
            if ahead.stops[token % _AHEAD] and not chosen_from:
                return None
            given = rope, rows, pads[rows[0]], scale, softcap, ahead, chosen_from
            own = cast(_Made | None, held.get(rows))
            if own is None or not own.serves(given, blocks):
                if cpu.unsupported_reason(q, k, v) is not None:
                    return None
                own = _Made(given, blocks, self._kernel(store, q.shape[1], *given))
            if not own.kernel.takes(q, k, v, len(pads)):
                return None  # the store says what is wrong
            made[rows] = own
        outs = [self._run(one, q, k, v, past, 0 if index is None else index.place) for one in made.values()]
        store.made = made
        store.took()
        if index is not None:
            index.took()
        if len(runs) == 1:
            return outs[0]
        return torch.cat([out for out, _ in outs]), torch.cat([lse for _, lse in outs])

    def _run(self, made: _Made, q: Tensor, k: Tensor, v: Tensor, past: int, kept: int) -> tuple[Tensor, Tensor]:
        """The rows that a kernel was made for."""
        _, (a, b), pad, _, _, ahead, _ = made.given
        token, kernel = past - pad, made.kernel
        row = token % _AHEAD
        if b - a < q.shape[0]:
            q, k, v = q[a:b], k[a:b], v[a:b]
        out = kernel(q, k, v, at=token, row=row, kept=kept, stop=ahead.stops[row], seen=ahead.seen[row])
        return out, kernel.lse

    def _kernel(
        self,
        store: KVStore,
        heads: int,
        rope: Rope,
        rows: tuple[int, int],
        pad: int,
        scale: float,
        softcap: float | None,
        ahead: _Ahead,
        chosen_from: bool,
    ) -> DecodeKernel:
        """The kernel of the next tokens of rows with equal padding."""
        attender, index, here = self._attender, cast(Any, store.index), slice(*rows)
        *keys, values = (x[here, :, pad:] for x in store.room)
        table, choice, kept = attender.table(rope.table, 0), None, [None] * 3
        if index is not None and index.kept:
            own = [x[here] for x in index.kept]
            kept = own if len(own) == 3 else [None, *own, None]
        if chosen_from:
            assert self._chooser is not None
            chooser, n = self._chooser, attender.scored_rotation
            seen_by = chooser.window_table(table, torch.device("cpu"))
            places = ChosenPositions(attender.chosen_rotation, ahead.positions, seen_by)
            scored = None if n is None else keys[n]
            choice = index.asking(here, pad, scored, heads, values.shape[1], places)
        return DecodeKernel(
            keys=keys,
            values=values,
            turns=ahead.turns,
            bands=ahead.bands,
            rope=rope.paired().with_table(table),
            order=rope.order,
            heads=heads,
            scale=scale,
            softcap=softcap,
            kept=kept,
            asking=choice,
        )

    def _look(self, table: Table, start: int) -> _Ahead:
        """What the tokens from ``start`` on see."""
        if (found := self._ahead.get((table, start))) is not None:
            return found
        attender, window, stop = self._attender, self._attender.window, start + _AHEAD
        i, cpu = torch.arange(start, stop), torch.device("cpu")
        bands = attender.positions.all_bands(self._selection.kept(start, stop))
        plan = make_plan(bands, start, stop)
        factors = [attender.method.query_factor(window, n) for n in range(start + 1, stop + 1)]
        by_row = torch.tensor(factors, dtype=torch.float32, device="cpu")[:, None]
        seen, keys = [], torch.zeros_like(i)
        for band, low, high, q_pos in zip(plan.bands, plan.lo, plan.hi, plan.q_pos, strict=True):
            cos, sin = (x * by_row for x in cos_sin(table, q_pos, cpu))
            rotation = attender.key_maps.index(bands[band].k_pos)
            seen.append(BandRange(low=low, high=high, turn=(cos, sin), rotation=rotation))
            keys += high - low
        turns = [cos_sin(table, to(i), cpu) for to in attender.key_maps]
        stops, positions = self._choice(i)
        made = _Ahead(seen, turns, keys.tolist(), stops.tolist(), positions)
        with self._lock:  # it depends on nothing but its key, so threads may share it
            while len(self._ahead) >= _RUNS:
                del self._ahead[next(iter(self._ahead))]
            return self._ahead.setdefault((table, start), made)

    def _choice(self, i: Tensor) -> tuple[Tensor, Tensor]:
        """``stops`` and ``positions`` of tokens ``i``."""
        chooser = self._chooser
        if chooser is None:
            return torch.zeros_like(i), i
        positions = chooser.places(i)
        assert positions is not None
        return torch.where(i < chooser.selection.first_row, 0, chooser.selection.stops(i)), positions
