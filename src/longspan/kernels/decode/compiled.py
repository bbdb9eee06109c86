"""A decoding step in C; everything but the token itself is packed beforehand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from longspan.kernels import cpu
from longspan.kernels.cpu import packing
from longspan.kernels.cpu.packing import CodedTokens
from longspan.kernels.cpu.structs import ALL
from longspan.kernels.decode.contract import BandRange, ScoreSpec
from longspan.kernels.layout import empty_output, fp32_table
from longspan.rope import CosSin, Rope

_EACH = 4096  # entries of an item of the work
_THETA_ROWS = 32  # as in decode.c
_ROWS, _STEP, _ROTATION, _BAND = ALL["DecodeRows"], ALL["DecodeStep"], ALL["Rotation"], ALL["BandRange"]
_QUERY, _CHOICE, _UNITS = ALL["QueryForScoring"], ALL["Choice"], ALL["ChosenUnits"]
_NOW_FIELDS = ("q", "k", "v", "q_step", "k_step", "v_step", "out", "at", "row", "tail", "stop")
_NOW = _STEP.first(*_NOW_FIELDS)
_KERNELS = "decode_append", "decode_reduce", "decode_score", "decode_choose", "decode_attend"


Token = tuple[int, int, int, int, int]  # at, row, kept, stop, seen: see ``DecodeKernel.__call__``


class DecodeKernel:
    """The next tokens of rows that have stored, and see, the same places, while their memory stays where it is.

    Args:
        keys: the stored rotations ``[B, Hkv, N, D]``, with room for more tokens than are stored.
        values: ``[B, Hkv, N, Dv]``.
        key_cos_sin: for each rotation cos and sin ``[T, r / 2]`` by which the keys of ``T`` tokens are rotated.
        bands: what the tokens see whatever they choose.
        rope: of channels in their stored order.
        order: ``[D]`` int64, the stored order of a query's or key's channels; None if it is their own.
        heads: ``H``.
        kept: memory ``[B, H, R, D]`` for copies of queries, ``[B, Hkv, R, D]`` of keys and ``[B, Hkv, R, Dv]`` of
            values, unrotated, their channels in the stored order; None for those of which no copy is kept.
        scoring: how tokens choose; None if they do not.
        codes: of each rotation and of the values, earlier tokens in int8, which ``keys`` and ``values`` go on from;
            None if there are none. Entries to choose by are never among them.

    Attributes:
        batch, dtype, shapes: ``B``, and the dtype and the shapes of a row's queries, keys and values.
        packed: ``DecodeStep`` behind the fields that differ from token to token.
        lse: ``[B, H, 1]`` fp32 of the last token.
        chosen: ``[B, S, m]`` int64, the units that the last token chose, ascending, if it chose (``stop`` was not 0);
            None without ``scoring``.
    """

    def __init__(
        self,
        *,
        keys: Sequence[Tensor],
        values: Tensor,
        key_cos_sin: Sequence[CosSin],
        bands: Sequence[BandRange],
        rope: Rope,
        order: Tensor | None,
        heads: int,
        scale: float,
        softcap: float | None,
        kept: Sequence[Tensor | None],
        scoring: ScoreSpec | None,
        codes: Sequence[CodedTokens] | None = None,
    ) -> None:
        batch, kv_heads = values.shape[:2]
        width, value_width = keys[0].shape[-1], values.shape[-1]
        self.shapes = (heads, 1, width), (kv_heads, 1, width), (kv_heads, 1, value_width)
        self.batch, self.dtype, self.scoring = batch, values.dtype, scoring
        self.chosen: Tensor | None = None
        q = values.new_empty(batch, *self.shapes[0])
        out, self.lse = empty_output(q, values)
        sharing = kv_heads if scoring is None else max(kv_heads, scoring.choosing)
        self._counts = batch * kv_heads, batch * sharing
        self._numbers = batch * sharing * (width + value_width)
        key_tables = [fp32_table(one) for one in key_cos_sin]
        band_tables = [fp32_table(band.cos_sin) for band in bands]
        owners: list[object] = [q, keys, values, key_tables, band_tables, bands, order, kept, codes]
        rows = min(cos.shape[0] for cos, _ in (*key_tables, *band_tables))
        for band in bands:
            for name, ends in (("low", band.low), ("high", band.high)):
                packing.expect(name, ends, None, dtype=torch.int64, contiguous=True)
                rows = min(rows, ends.shape[0])
        if order is not None:
            packing.expect("order", order, width, dtype=torch.int64, contiguous=True)
        tails = min((x.shape[2] for x in kept if x is not None), default=0)
        for x, (of_heads, _, of_width) in zip(kept, self.shapes, strict=True):
            if x is not None:
                packing.expect("kept", x, batch, of_heads, None, of_width, dtype=q.dtype)
                if x.stride(2) != of_width:
                    raise ValueError(f"kept of shape {list(x.shape)} does not hold token after token: {x.stride()}")
        *of_keys, of_values = [None] * (len(keys) + 1) if codes is None else codes
        before = 0 if of_values is None else of_values.codes.shape[2]
        query, choice, units = self._scoring_structs(scoring, q, kv_heads, rope, owners)
        packed = _STEP.pack(
            **dict.fromkeys(_NOW_FIELDS, 0) | dict.fromkeys(("q_step", "k_step", "v_step"), (0, 0)),
            job=packing.job(q, values, out, self.lse, rope, scale, softcap, sharing, False, before),
            batch=batch,
            rows=rows,
            tails=tails,
            order=_address(order),
            kept=[_address(x) for x in kept],
            kept_step=[n for x in kept for n in ((0, 0) if x is None else x.stride()[:2])],
            scoring=query,
            choice=choice,
            units=units,
            values=packing.codes(of_values, kv_heads, value_width),
            rotations=len(keys),
            bands=len(bands),
        )
        parts = [packed[_NOW.size :]]
        for x, one, own in zip(keys, key_tables, of_keys, strict=True):
            packed_codes = packing.codes(own, kv_heads, width)
            packed_keys = packing.keys(x, q, values, before)
            parts.append(_ROTATION.pack(keys=packed_keys, cos_sin=packing.table(one, rope), codes=packed_codes))
        for band, one in zip(bands, band_tables, strict=True):
            low, high = band.low.data_ptr(), band.high.data_ptr()
            parts.append(_BAND.pack(low=low, high=high, cos_sin=packing.table(one, rope), rotation=band.rotation))
        self.packed, self._owners = b"".join(parts), owners

    def _scoring_structs(
        self, scoring: ScoreSpec | None, q: Tensor, kv_heads: int, rope: Rope, owners: list[object]
    ) -> tuple[bytes, bytes, bytes]:
        """``QueryForScoring``, ``Choice`` and ``ChosenUnits``."""
        if scoring is None:
            return bytes(_QUERY.size), bytes(_CHOICE.size), bytes(_UNITS.size)
        batch, heads, _, width = q.shape
        entries, signs, choosing = scoring.entries, scoring.signs, scoring.choosing
        if signs not in (1, 2) or scoring.size < 1 or scoring.first < 0 or scoring.count < 1:
            raise ValueError(
                f"signs are 1 or 2 and a token chooses one unit of one token or more from 0 on, not {signs}, "
                f"{scoring.count} of {scoring.size} from {scoring.first}"
            )
        room = entries.shape[2] // signs
        formed = _floats(batch, signs, kv_heads if scoring.sums else heads, width)
        scores = _floats(batch, choosing, room)
        nearby = torch.empty_like(scores) if scoring.near else None
        self.chosen = chosen = torch.empty(batch, choosing, scoring.count, dtype=torch.int64, device="cpu")
        table, positions = fp32_table(scoring.positions.table), scoring.positions.positions.contiguous()
        packing.expect("entries", entries, batch, None, None, None)
        packing.whole_lanes(entries.shape[3])
        packing.expect("positions", positions, None, scoring.count, dtype=torch.int64)
        key = reduced = theta_q = theta_k = None
        scored_by = formed.shape[2] * width
        if scoring.thetas is not None:  # the new token's entry is written as its key is
            packing.expect("entries", entries, *entries.shape, dtype=q.dtype)
            key, reduced = _floats(batch, kv_heads, width), _floats(batch, entries.shape[3])
            scored_by = entries.shape[3]
            theta_q, theta_k = (x.contiguous() for x in scoring.thetas)
            for name, theta in (("theta_q", theta_q), ("theta_k", theta_k)):
                packing.expect(name, theta, entries.shape[3], kv_heads * width, dtype=q.dtype)
        if scoring.parts > entries.shape[1] or scoring.parts * choosing * entries.shape[-1] != scored_by:
            raise ValueError(f"entries {list(entries.shape)} are not scored by {heads} heads of {width} channels")
        owners += [scoring, formed, scores, nearby, chosen, table, positions, key, reduced, theta_q, theta_k]
        step = entries.stride()
        above = entries.data_ptr() + (signs - 1) * step[2] * entries.element_size()
        query = _QUERY.pack(
            query=_address(formed),
            key=_address(key),
            sums=scoring.sums,
            rounds=scoring.rounds,
            signs=signs,
            width=entries.shape[-1],
            theta_q=_address(theta_q),
            theta_k=_address(theta_k),
            reduced_q=_address(reduced),
        )
        choice = _CHOICE.pack(
            entries=above,
            step=(step[0], step[1], signs * step[2]),
            sign_step=-step[2],
            heads=entries.shape[1],
            kind=cpu.KINDS[entries.dtype],
            parts=scoring.parts,
            choosing=choosing,
            each=_EACH,
            scores=_address(scores),
            nearby=_address(nearby),
            room=room,
            first=scoring.first,
            chosen=chosen.data_ptr(),
            count=scoring.count,
            prefer_last=scoring.last,
            near=scoring.near,
            tie=scoring.tie,
        )
        units = _UNITS.pack(
            rotation=scoring.positions.rotation,
            size=scoring.size,
            positions=positions.data_ptr(),
            position_step=positions.stride(0) if len(positions) > 1 else 0,
            position_rows=len(positions),
            block=scoring.positions.block,
            table=packing.table(table, rope),
        )
        return query, choice, units

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, at: int, row: int, kept: int, stop: int, seen: int) -> Tensor:
        """Store a token and attend.

        Args:
            q, k, v: ``[B, H, 1, D]``, ``[B, Hkv, 1, D]``, ``[B, Hkv, 1, Dv]``, unrotated.
            at: its place among the stored tokens.
            row: its row of the bands, angles and positions, which were given for ``T`` tokens.
            kept: its place in ``kept``.
            stop: one past the last entry that it chooses from; 0 if it chooses none.
            seen: how many keys its bands contain, which decides the number of threads.

        Returns:
            ``[B, 1, H, Dv]``; the log-sum-exp is in ``lse`` ``[B, H, 1]``.
        """
        return DecodeRows([self])(q, k, v, [(at, row, kept, stop, seen)])

    def work(self, stop: int, seen: int) -> tuple[int, int, int, int, int, int]:
        """Items of each of the five kernels, and how many stored numbers they read in all."""
        (tokens, attending), numbers, scoring = self._counts, seen * self._numbers, self.scoring
        if scoring is None:
            return tokens, 0, 0, 0, attending, numbers
        batch, width = self.batch, scoring.entries.shape[-1]
        reduced = 0 if scoring.thetas is None else 2 * batch * -(-width // _THETA_ROWS)
        if not stop:
            return tokens, reduced, 0, 0, attending, numbers
        entries, choices = stop - scoring.first, batch * scoring.choosing
        numbers += scoring.count * scoring.size * self._numbers
        numbers += choices * scoring.parts * scoring.signs * entries * width
        return tokens, reduced, choices * -(-entries // _EACH), choices, attending, numbers


class DecodeRows:
    """The next token of every row of a batch in one call, whatever each row has stored and sees.

    Args:
        kernels: of consecutive rows, the first rows' first; one layer's.
    """

    def __init__(self, kernels: Sequence[DecodeKernel]) -> None:
        self.kernels = list(kernels)
        begin = _ROWS.size + 8 * len(self.kernels)
        begins = [begin := begin + size for size in (0, *(_NOW.size + len(x.packed) for x in self.kernels[:-1]))]
        self._header = _ROWS.pack(count=len(begins)) + struct.pack(f"={len(begins)}q", *begins)
        self._batch = sum(kernel.batch for kernel in self.kernels)
        (heads, _, _), (_, _, width) = self.kernels[0].shapes[0], self.kernels[0].shapes[2]
        self._out, self._size = (self._batch, 1, heads, width), self.kernels[0].dtype.itemsize

    def takes(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Whether q, k and v ``[B, H, 1, D]`` have the dtype, the shapes and the layout that were packed."""
        kind, (queries, keys, values), batch = self.kernels[0].dtype, self.kernels[0].shapes, self._batch
        if q.shape != (batch, *queries) or k.shape != (batch, *keys) or v.shape != (batch, *values):
            return False
        if q.dtype != kind or k.dtype != kind or v.dtype != kind or not (q.is_cpu and k.is_cpu and v.is_cpu):
            return False
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            return False
        return q.stride(3) == 1 and k.stride(3) == 1 and v.stride(3) == 1

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, tokens: Sequence[Token]) -> Tensor:
        """Store a token of each row and attend.

        Args:
            q, k, v: ``[B, H, 1, D]``, ``[B, Hkv, 1, D]``, ``[B, Hkv, 1, Dv]``, unrotated.
            tokens: for each kernel ``at``, ``row``, ``kept``, ``stop`` and ``seen`` of its rows' tokens.

        Returns:
            ``[B, 1, H, Dv]``; each kernel has the log-sum-exp of its rows.
        """
        if not len(q) == len(k) == len(v) == self._batch:
            raise ValueError(f"{len(q)}, {len(k)} and {len(v)} rows of a token, and the memory of {self._batch}")
        out = q.new_empty(self._out)
        q_row, q_head, _, _ = q.stride()
        k_row, k_head, _, _ = k.stride()
        v_row, v_head, _, _ = v.stride()
        at_q, at_k, at_v, at_out = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
        parts, (append, reduce, score, choose, attend, numbers) = [self._header], (0,) * 6
        for kernel, token in zip(self.kernels, tokens, strict=True):
            at, row, kept, stop, seen = token
            now = _NOW.pack(at_q, at_k, at_v, q_row, q_head, k_row, k_head, v_row, v_head, at_out, at, row, kept, stop)
            parts += now, kernel.packed
            a, r, s, c, d, n = kernel.work(stop, seen)
            append, reduce, score, choose, attend, numbers = (
                append + a,
                reduce + r,
                score + s,
                choose + c,
                attend + d,
                numbers + n,
            )
            if len(self.kernels) > 1:
                size = kernel.batch * self._size
                at_q, at_k, at_v = at_q + size * q_row, at_k + size * k_row, at_v + size * v_row
                at_out += size * self._out[2] * self._out[3]
        cpu.run_steps(_steps(append, reduce, score, choose, attend), b"".join(parts), numbers)
        return out


@lru_cache(maxsize=512)
def _steps(*items: int) -> tuple[tuple[str, int], ...]:
    """The kernels that have work, and how many items."""
    return tuple((name, count) for name, count in zip(_KERNELS, items, strict=True) if count)


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _floats(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cpu")
