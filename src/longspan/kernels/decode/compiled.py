"""One new token in C, from its unrotated query, key and value to its output; all but itself is packed beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.kernels import cpu
from longspan.kernels.cpu import packing
from longspan.kernels.cpu.structs import ALL
from longspan.rope import CosSin, Rope

_EACH = 4096  # entries of an item of the work
_THETA_ROWS = 32  # as in decode.c
_TOKEN, _ROTATION, _SEEN = ALL["DecodeStep"], ALL["Rotation"], ALL["BandRange"]
_ASK, _CHOICE, _UNITS = ALL["QueryForScoring"], ALL["Choice"], ALL["ChosenUnits"]
_NOW_FIELDS = ("q", "k", "v", "q_step", "k_step", "v_step", "out", "at", "row", "tail", "stop")
_NOW = _TOKEN.first(*_NOW_FIELDS)


@dataclass(frozen=True, kw_only=True)
class BandRange:
    """A band: the keys ``low[row] ≤ j < high[row]`` of a stored rotation, by queries turned by row ``row``.

    Attributes:
        low, high: ``[T]`` int64, for ``T`` tokens that follow one another.
        turn: cos and sin ``[T, r / 2]``.
        rotation: which of the stored ones.
    """

    low: Tensor
    high: Tensor
    turn: CosSin
    rotation: int


@dataclass(frozen=True)
class ChosenPositions:
    """Where a token sees the units from that it chose.

    Attributes:
        rotation: the stored keys that are read.
        positions: ``[T, m]`` or ``[1, m]`` int64.
        table: cos and sin by position.
    """

    rotation: int
    positions: Tensor
    table: CosSin


@dataclass(frozen=True, kw_only=True)
class ScoreSpec:
    """How a query scores entries, how many it chooses, and how it sees what they stand for.

    Attributes:
        entries: ``[B, He, N, W]``; with two signs ``[B, He, 2N, W]``, of which every first one meets the channels of a
            query below zero and every second one those above.
        signs: 1, or 2.
        sums: whether a group's queries are summed, in fp32.
        rounds: whether that sum is rounded to the queries' dtype.
        choosing: ``S``, how many choose in a row of the batch.
        parts: heads of entries whose scores are summed.
        thetas: θ_q and θ_k ``[W, Hkv · D]`` for entries that a token's keys, too, have to become; in their dtype.
        first: the first entry to choose from.
        count: how many are chosen, ``m``.
        tie, last, near: see ``longspan.kernels.topk``.
        size: tokens of a unit that an entry stands for.
        places: where they are seen from.
    """

    entries: Tensor
    signs: int = 1
    sums: bool
    rounds: bool = False
    choosing: int
    parts: int = 1
    thetas: tuple[Tensor, Tensor] | None = None
    first: int
    count: int
    tie: float = 0.0
    last: bool = False
    near: int = 0
    size: int
    places: ChosenPositions


class DecodeKernel:
    """A layer's next tokens, one at a time, while its memory stays where it is.

    Args:
        keys: the stored rotations ``[B, Hkv, N, D]``, with room for more than is held.
        values: ``[B, Hkv, N, Dv]``.
        turns: for each rotation cos and sin ``[T, r / 2]`` by which the keys of ``T`` tokens are turned.
        bands: what they see in any case.
        rope: of channels in the order that is stored.
        order: ``[D]`` int64, the channels of a query or key in that order; None where they are in it.
        heads: ``H``.
        kept: room ``[B, H, R, D]`` for queries, ``[B, Hkv, R, D]`` for keys and ``[B, Hkv, R, Dv]`` for values that are
            kept besides, as they come but for the order of channels; None for what is not.
        asking: for tokens that choose.
    """

    def __init__(
        self,
        *,
        keys: Sequence[Tensor],
        values: Tensor,
        turns: Sequence[CosSin],
        bands: Sequence[BandRange],
        rope: Rope,
        order: Tensor | None,
        heads: int,
        scale: float,
        softcap: float | None,
        kept: Sequence[Tensor | None],
        asking: ScoreSpec | None,
    ) -> None:
        batch, kv_heads = values.shape[:2]
        width, own = keys[0].shape[-1], values.shape[-1]
        self._shapes = (heads, 1, width), (kv_heads, 1, width), (kv_heads, 1, own)
        self._kind, self._asking = values.dtype, asking
        self._out = batch, 1, heads, values.shape[-1]
        q = values.new_empty(batch, *self._shapes[0])
        out, self.lse = packing.empty_output(q, values)
        sharing = kv_heads if asking is None else max(kv_heads, asking.choosing)
        self._counts = batch * kv_heads, batch * sharing
        self._numbers = batch * sharing * packing.numbers_per_token(q, values)
        turns = [packing.fp32_table(turn) for turn in turns]
        seen = [packing.fp32_table(band.turn) for band in bands]
        held: list[object] = [q, keys, values, turns, seen, bands, order, kept]
        rows = min(turn[0].shape[0] for turn in (*turns, *seen))
        for band in bands:
            for name, ends in (("low", band.low), ("high", band.high)):
                packing.expect(name, ends, None, dtype=torch.int64, contiguous=True)
                rows = min(rows, ends.shape[0])
        if order is not None:
            packing.expect("order", order, width, dtype=torch.int64, contiguous=True)
        tails = min((x.shape[2] for x in kept if x is not None), default=0)
        for x, (of_heads, _, of_width) in zip(kept, self._shapes, strict=True):
            if x is not None:
                packing.expect("kept", x, batch, of_heads, None, of_width, dtype=q.dtype)
                if x.stride(2) != of_width:
                    raise ValueError(f"kept of shape {list(x.shape)} does not hold token after token: {x.stride()}")
        ask, choice, units = self._asked(asking, q, kv_heads, rope, held)
        given = _TOKEN.pack(
            **dict.fromkeys(_NOW_FIELDS, 0) | dict.fromkeys(("q_step", "k_step", "v_step"), (0, 0)),
            job=packing.job(q, values, out, self.lse, rope, scale, softcap, sharing, False),
            rows=rows,
            tails=tails,
            order=0 if order is None else order.data_ptr(),
            kept=[0 if x is None else x.data_ptr() for x in kept],
            kept_step=[n for x in kept for n in ((0, 0) if x is None else x.stride()[:2])],
            scoring=ask,
            choice=choice,
            units=units,
            rotations=len(keys),
            bands=len(bands),
        )
        parts = [given[_NOW.size :]]
        for x, turn in zip(keys, turns, strict=True):
            parts.append(_ROTATION.pack(keys=packing.keys(x, q, values), cos_sin=packing.table(turn, rope)))
        for band, turn in zip(bands, seen, strict=True):
            low, high = band.low.data_ptr(), band.high.data_ptr()
            parts.append(_SEEN.pack(low=low, high=high, cos_sin=packing.table(turn, rope), rotation=band.rotation))
        self._given, self._held = b"".join(parts), held

    def _asked(
        self, asking: ScoreSpec | None, q: Tensor, kv_heads: int, rope: Rope, held: list[object]
    ) -> tuple[bytes, bytes, bytes]:
        """``QueryForScoring``, ``Choice`` and ``ChosenUnits``."""
        if asking is None:
            return bytes(_ASK.size), bytes(_CHOICE.size), bytes(_UNITS.size)
        batch, heads, _, width = q.shape
        entries, signs, choosing = asking.entries, asking.signs, asking.choosing
        if signs not in (1, 2) or asking.size < 1 or asking.first < 0 or asking.count < 1:
            raise ValueError(
                f"signs are 1 or 2 and a token chooses one unit of one token or more from 0 on, not {signs}, "
                f"{asking.count} of {asking.size} from {asking.first}"
            )
        room = entries.shape[2] // signs
        asked = _floats(batch, signs, kv_heads if asking.sums else heads, width)
        scores = _floats(batch, choosing, room)
        nearby = torch.empty_like(scores) if asking.near else None
        chosen = torch.empty(batch, choosing, asking.count, dtype=torch.int64, device="cpu")
        table, positions = packing.fp32_table(asking.places.table), asking.places.positions.contiguous()
        key = reduced = None
        if asking.thetas is not None:
            key = _floats(batch, kv_heads, width)
            reduced = _floats(batch, entries.shape[-1])
        theta_q, theta_k = (None, None) if asking.thetas is None else (x.contiguous() for x in asking.thetas)
        kind = None if asking.thetas is None else q.dtype  # the new token's entry is written as its key is
        packing.expect("entries", entries, batch, None, None, None, dtype=kind)
        packing.whole_lanes(entries.shape[3])
        packing.expect("positions", positions, None, asking.count, dtype=torch.int64)
        if theta_q is not None and theta_k is not None:
            for name, theta in (("theta_q", theta_q), ("theta_k", theta_k)):
                packing.expect(name, theta, entries.shape[-1], kv_heads * width, dtype=q.dtype)
        scored_by = asked.shape[2] * width if asking.thetas is None else entries.shape[-1]
        if asking.parts > entries.shape[1] or asking.parts * choosing * entries.shape[-1] != scored_by:
            raise ValueError(f"entries {list(entries.shape)} are not scored by {heads} heads of {width} channels")
        held += [asking, asked, scores, nearby, chosen, table, positions, key, reduced, theta_q, theta_k]
        step = entries.stride()
        above = entries.data_ptr() + (signs - 1) * step[2] * entries.element_size()
        ask = _ASK.pack(
            query=_address(asked),
            key=_address(key),
            sums=asking.sums,
            rounds=asking.rounds,
            signs=signs,
            width=entries.shape[-1],
            theta_q=_address(theta_q),
            theta_k=_address(theta_k),
            reduced_q=_address(reduced),
            reduced=entries.shape[-1],
        )
        choice = _CHOICE.pack(
            entries=above,
            step=(step[0], step[1], signs * step[2]),
            sign_step=-step[2],
            heads=entries.shape[1],
            kind=cpu.KINDS[entries.dtype],
            parts=asking.parts,
            choosing=choosing,
            each=_EACH,
            scores=_address(scores),
            nearby=_address(nearby),
            room=room,
            first=asking.first,
            chosen=chosen.data_ptr(),
            count=asking.count,
            prefer_last=asking.last,
            near=asking.near,
            tie=asking.tie,
        )
        units = _UNITS.pack(
            rotation=asking.places.rotation,
            size=asking.size,
            positions=positions.data_ptr(),
            position_step=positions.stride(0) if len(positions) > 1 else 0,
            position_rows=len(positions),
            table=packing.table(table, rope),
        )
        return ask, choice, units

    def takes(self, q: Tensor, k: Tensor, v: Tensor, batch: int) -> bool:
        """Whether a token's query, key and value ``[batch, H, 1, D]`` are, row by row, such as it was made for."""
        kind, (queries, keys, values) = self._kind, self._shapes
        if q.shape != (batch, *queries) or k.shape != (batch, *keys) or v.shape != (batch, *values):
            return False
        if q.dtype != kind or k.dtype != kind or v.dtype != kind or not (q.is_cpu and k.is_cpu and v.is_cpu):
            return False
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            return False
        return q.stride(3) == 1 and k.stride(3) == 1 and v.stride(3) == 1

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, at: int, row: int, kept: int, stop: int, seen: int) -> Tensor:
        """Store a token and attend.

        Args:
            q, k, v: ``[B, H, 1, D]``, ``[B, Hkv, 1, D]``, ``[B, Hkv, 1, Dv]``, unrotated.
            at: its place among the stored tokens.
            row: which of the ``T`` tokens it is that bands, turns and positions were given for.
            kept: its place in ``kept``.
            stop: one past the last entry that it chooses from; 0 if it chooses none.
            seen: keys that its bands show, for the number of threads.

        Returns:
            ``[B, 1, H, Dv]``; the log-sum-exp is in ``lse`` ``[B, H, 1]``.
        """
        if not len(q) == len(k) == len(v) == self._out[0]:
            raise ValueError(f"{len(q)}, {len(k)} and {len(v)} rows of a token, and the memory of {self._out[0]}")
        out = q.new_empty(self._out)
        steps = *q.stride()[:2], *k.stride()[:2], *v.stride()[:2]
        now = _NOW.pack(q.data_ptr(), k.data_ptr(), v.data_ptr(), *steps, out.data_ptr(), at, row, kept, stop)
        tokens, items = self._counts
        work, numbers = [("decode_append", tokens)], seen * self._numbers
        if (asking := self._asking) is not None:
            batch, width = self._out[0], asking.entries.shape[-1]
            if asking.thetas is not None:
                work.append(("decode_reduce", 2 * batch * -(-width // _THETA_ROWS)))
            if stop:
                entries = stop - asking.first
                work.append(("decode_score", batch * asking.choosing * -(-entries // _EACH)))
                work.append(("decode_choose", batch * asking.choosing))
                numbers += asking.count * asking.size * self._numbers
                numbers += batch * asking.choosing * asking.parts * asking.signs * entries * width
        work.append(("decode_attend", items))
        cpu.run_steps(work, now + self._given, numbers)
        return out


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _floats(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cpu")
