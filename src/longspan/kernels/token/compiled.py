"""One new token in C, from its unrotated query, key and value to its output; all but itself is packed beforehand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.kernels import native
from longspan.kernels.native import calls
from longspan.rope import Rope, Turn

_EACH = 4096  # entries of an item of the work
_THETA_ROWS = 32  # as in token.c
_NOW = struct.Struct("=3Q6qQ4q")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A band: the keys ``low[row] ≤ j < high[row]`` of a stored rotation, by queries turned by row ``row``.

    Attributes:
        low, high: ``[T]`` int64, for ``T`` tokens that follow one another.
        turn: cos and sin ``[T, r / 2]``.
        rotation: which of the stored ones.
    """

    low: Tensor
    high: Tensor
    turn: Turn
    rotation: int


@dataclass(frozen=True)
class Places:
    """Where a token sees the units from that it chose.

    Attributes:
        rotation: the stored keys that are read.
        positions: ``[T, m]`` or ``[1, m]`` int64.
        table: cos and sin by position.
    """

    rotation: int
    positions: Tensor
    table: Turn


@dataclass(frozen=True, kw_only=True)
class Asking:
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
        tie, last, near: see ``longspan.kernels.best``.
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
    places: Places


class TokenKernel:
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
        turns: Sequence[Turn],
        bands: Sequence[Seen],
        rope: Rope,
        order: Tensor | None,
        heads: int,
        scale: float,
        softcap: float | None,
        kept: Sequence[Tensor | None],
        asking: Asking | None,
    ) -> None:
        batch, kv_heads = values.shape[:2]
        width, own = keys[0].shape[-1], values.shape[-1]
        self._shapes = (heads, 1, width), (kv_heads, 1, width), (kv_heads, 1, own)
        self._kind, self._asking = values.dtype, asking
        self._out = batch, 1, heads, values.shape[-1]
        q = values.new_empty(batch, *self._shapes[0])
        out, self.lse = calls.room(q, values)
        sharing = kv_heads if asking is None else max(kv_heads, asking.choosing)
        self._counts = batch * kv_heads, batch * sharing
        self._numbers = batch * sharing * calls.token(q, values)
        turns = [calls.plain(turn) for turn in turns]
        seen = [calls.plain(band.turn) for band in bands]
        held: list[object] = [q, keys, values, turns, seen, bands, order, kept]
        parts = [
            calls.job(q, values, out, self.lse, rope, scale, softcap, sharing, False),
            calls.numbers(0 if order is None else order.data_ptr()),
            calls.numbers(*(0 if x is None else x.data_ptr() for x in kept)),
            calls.numbers(*(n for x in kept for n in ((0, 0) if x is None else x.stride()[:2]))),
            self._asked(asking, q, kv_heads, held),
            calls.numbers(len(keys), len(bands)),
            *(calls.keys([x]) + calls.tables([turn]) for x, turn in zip(keys, turns, strict=True)),
        ]
        for band, turn in zip(bands, seen, strict=True):
            parts.append(calls.numbers(band.low.data_ptr(), band.high.data_ptr()))
            parts.append(calls.tables([turn]) + calls.numbers(band.rotation))
        self._given, self._held = b"".join(parts), held

    def _asked(self, asking: Asking | None, q: Tensor, kv_heads: int, held: list[object]) -> bytes:
        """``Ask``, ``Choice`` and ``ChosenUnits``."""
        if asking is None:
            return bytes(10 * 8 + 19 * 8 + 6 * 8)
        batch, heads, _, width = q.shape
        entries, signs, choosing = asking.entries, asking.signs, asking.choosing
        room = entries.shape[2] // signs
        asked = _floats(batch, signs, kv_heads if asking.sums else heads, width)
        scores = _floats(batch, choosing, room)
        nearby = torch.empty_like(scores) if asking.near else None
        chosen = torch.empty(batch, choosing, asking.count, dtype=torch.int64, device="cpu")
        table, positions = calls.plain(asking.places.table), asking.places.positions.contiguous()
        key = reduced = None
        if asking.thetas is not None:
            key = _floats(batch, kv_heads, width)
            reduced = _floats(batch, entries.shape[-1])
        theta_q, theta_k = (None, None) if asking.thetas is None else (x.contiguous() for x in asking.thetas)
        held += [asking, asked, scores, nearby, chosen, table, positions, key, reduced, theta_q, theta_k]
        step = entries.stride()
        above = entries.data_ptr() + (signs - 1) * step[2] * entries.element_size()
        choice = (above, step[0], step[1], signs * step[2], -step[2], entries.shape[1], native.KINDS[entries.dtype])
        found = _address(scores), _address(nearby), room, asking.first, chosen.data_ptr()
        return b"".join(
            (
                calls.numbers(_address(asked), _address(key), asking.sums, asking.rounds, signs, entries.shape[-1]),
                calls.numbers(_address(theta_q), _address(theta_k), _address(reduced), entries.shape[-1]),
                calls.numbers(*choice, asking.parts, choosing, _EACH, *found),
                struct.pack("=3qd", asking.count, asking.last, asking.near, asking.tie),
                calls.numbers(asking.places.rotation, asking.size, positions.data_ptr()),
                calls.numbers(positions.stride(0) if len(positions) > 1 else 0),
                calls.tables([table]),
            )
        )

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

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, at: int, row: int, kept: int, stop: int, seen: int
    ) -> Tensor:
        """Store a token and attend.

        Args:
            q, k, v: ``[B, H, 1, D]``, ``[B, Hkv, 1, D]``, ``[B, Hkv, 1, Dv]``, unrotated.
            at: its place among the stored tokens.
            row: which of the ``T`` tokens it is that bands, turns and positions were given for.
            kept: its place in ``kept``.
            stop: one past the last entry that it chooses from; 0 if it chooses none.
            seen: keys that its bands show, for the number of threads.

        Returns:
            ``[B, H, 1, Dv]``; the log-sum-exp is in ``lse`` ``[B, H, 1]``.
        """
        out = q.new_empty(self._out)
        steps = *q.stride()[:2], *k.stride()[:2], *v.stride()[:2]
        now = _NOW.pack(q.data_ptr(), k.data_ptr(), v.data_ptr(), *steps, out.data_ptr(), at, row, kept, stop)
        tokens, items = self._counts
        work, numbers = [("token_taken_in", tokens)], seen * self._numbers
        if (asking := self._asking) is not None:
            batch, width = self._out[0], asking.entries.shape[-1]
            if asking.thetas is not None:
                work.append(("token_reduced", 2 * batch * -(-width // _THETA_ROWS)))
            if stop:
                entries = stop - asking.first
                work.append(("token_scored", batch * asking.choosing * -(-entries // _EACH)))
                work.append(("token_chosen", batch * asking.choosing))
                numbers += asking.count * asking.size * self._numbers
                numbers += batch * asking.choosing * asking.parts * asking.signs * entries * width
        work.append(("token_seen", items))
        native.run_all(work, now + self._given, numbers)
        return out.transpose(1, 2)


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _floats(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cpu")
