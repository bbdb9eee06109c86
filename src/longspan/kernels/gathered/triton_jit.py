"""Triton kernels of attention to units that each query chose, read in place. Importing this imports Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from longspan.kernels.gpu.primitives import gathered_step, load_rotated, narrowed, program_heads, store_finished, unseen


@triton.jit(do_not_specialize=["tokens", "count", "splits"])
def by_row(
    q_ptr,
    k_ptr,
    v_ptr,
    units_ptr,
    positions_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    lse_ptr,
    q_sb,
    q_sh,
    q_st,
    q_sn,
    k_sb,
    k_sh,
    k_sn,
    v_sb,
    v_sh,
    v_sn,
    positions_sb,
    positions_ss,
    out_sb,
    out_sh,
    out_st,
    tokens,
    count,
    splits,
    scale,
    SOFTCAP: tl.constexpr,
    KV_SHARE: tl.constexpr,
    CHOICE_SHARE: tl.constexpr,
    POSITIONS_SHARE: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    SLOTS: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    DP: tl.constexpr,
    DVP: tl.constexpr,
    START: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    R: tl.constexpr,
    K: tl.constexpr,
):
    """One row: the query heads that share its ``count`` units walk them.

    Grid: (rows · ``splits``, sharing groups · parts of a group, batch); ``*_SHARE`` groups share a key head, a choice,
    positions. ``SLOTS`` is for units shorter than a step: the keys of several units make a step, and each is rotated
    back by its unit's position, since the query can be rotated to one position only. units, positions: ``[.., rows,
    count]``, the last two dimensions contiguous. q: with ``HALF = 0`` rotated already, one copy a unit ``q_sn`` apart.
    """
    STEPS: tl.constexpr = (SIZE + K - 1) // K
    t = tl.program_id(0) // splits
    split = tl.program_id(0) % splits
    b, s, of_all, g = program_heads(R, GROUP, TILE_HEADS)
    head = s * GROUP + g
    used = (tl.arange(0, R) < TILE_HEADS) & (g < GROUP)
    q_at = b * q_sb + head * q_sh + t.to(tl.int64) * q_st
    k_ptr += b * k_sb + s // KV_SHARE * k_sh
    v_ptr += b * v_sb + s // KV_SHARE * v_sh
    units_ptr += (of_all // CHOICE_SHARE * tokens + t) * count
    positions_ptr += b * positions_sb + s // POSITIONS_SHARE * positions_ss + t.to(tl.int64) * count

    acc, top, total = unseen(R, DVP)
    e = tl.arange(0, K)
    if SLOTS:
        q = load_rotated(q_ptr, q_at, used, cos_ptr, sin_ptr, q_at, D, DP, START, 0, INTERLEAVED)
        q = narrowed(q, q_ptr.dtype.element_ty)
        share = tl.cdiv(tl.cdiv(count * SIZE, K), splits) * K
        for first in range(split * share, tl.minimum((split + 1) * share, count * SIZE), K):
            slot = first + e
            there = slot < count * SIZE
            unit = tl.load(units_ptr + slot // SIZE, mask=there, other=0).to(tl.int64)
            cos_sin_at = tl.load(positions_ptr + slot // SIZE, mask=there, other=0).to(tl.int64) * HALF
            acc, top, total = gathered_step(
                acc, top, total, q, k_ptr, v_ptr, k_sn, v_sn, unit * SIZE + slot % SIZE, there, cos_ptr, sin_ptr,
                cos_sin_at, scale, SOFTCAP, D, DV, DP, DVP, START, HALF, INTERLEAVED, True, True,
            )  # fmt: skip
    else:
        share = tl.cdiv(count * STEPS, splits)
        begin = split * share
        end = tl.minimum(begin + share, count * STEPS)
        for n in range(begin // STEPS, tl.cdiv(end, STEPS)):
            unit = tl.load(units_ptr + n).to(tl.int64)
            cos_sin_at = tl.load(positions_ptr + n).to(tl.int64) * HALF + tl.zeros([R], tl.int64)
            q_rows = q_at + tl.cast(n, tl.int64) * q_sn
            q = load_rotated(q_ptr, q_rows, used, cos_ptr, sin_ptr, cos_sin_at, D, DP, START, HALF, INTERLEAVED)
            q = narrowed(q, q_ptr.dtype.element_ty)
            for at in range(tl.maximum(begin - n * STEPS, 0), tl.minimum(end - n * STEPS, STEPS)):
                token = at * K + e
                acc, top, total = gathered_step(
                    acc, top, total, q, k_ptr, v_ptr, k_sn, v_sn, unit * SIZE + token, token < SIZE, cos_ptr, sin_ptr,
                    unit, scale, SOFTCAP, D, DV, DP, DVP, START, 0, INTERLEAVED, False, SIZE % K != 0,
                )  # fmt: skip

    out_at = b * out_sb + head * out_sh + t.to(tl.int64) * out_st + split * DV
    lse_at = ((of_all * GROUP + g) * tokens + t) * splits + split
    store_finished(acc, top, total, out_ptr, lse_ptr, out_at, lse_at, used, DV, DVP)


@triton.jit(do_not_specialize=["pairs", "available", "most"])
def schedule(chosen_ptr, tiles_ptr, pairs, available, most, PLACES: tl.constexpr, U: tl.constexpr):
    """The tiles of one sharing group: ``tiles [.., most, 3]`` of zeros gets a unit's, ``U`` units at a time.

    chosen ``[.., pairs]``: the units of all pairs, ascending. Grid: (sharing groups of all rows).
    """
    chosen_ptr += tl.program_id(0).to(tl.int64) * pairs
    tiles_ptr += tl.program_id(0).to(tl.int64) * most * 3
    before = 0
    for first in range(0, available, U):
        unit = first + tl.arange(0, U)
        # How many pairs have a smaller unit, and how many none larger: two bisections.
        start = tl.zeros([U], tl.int32)
        end = tl.zeros([U], tl.int32)
        by = tl.full([], 1, tl.int32) << 30
        while by > 0:
            at = start + by
            there = at <= pairs
            found = tl.load(chosen_ptr + at - 1, mask=there, other=0)
            start = tl.where(there & (found < unit), at, start)
            at = end + by
            there = at <= pairs
            found = tl.load(chosen_ptr + at - 1, mask=there, other=0)
            end = tl.where(there & (found <= unit), at, end)
            by = by >> 1
        end = tl.where(unit < available, end, start)
        count = tl.cdiv(end - start, PLACES)
        tile = before + tl.cumsum(count, 0) - count
        for n in range(tl.max(count, 0)):
            at = tiles_ptr + (tile + n) * 3
            place = start + n * PLACES
            tl.store(at, unit, mask=n < count)
            tl.store(at + 1, place, mask=n < count)
            tl.store(at + 2, tl.minimum(end - place, PLACES), mask=n < count)
        before += tl.sum(count, 0)


@triton.jit(do_not_specialize=["tokens", "count"])
def by_unit(
    q_ptr,
    k_ptr,
    v_ptr,
    order_ptr,
    tiles_ptr,
    positions_ptr,
    cos_ptr,
    sin_ptr,
    parts_ptr,
    lse_ptr,
    q_sb,
    q_sh,
    q_st,
    q_sn,
    k_sb,
    k_sh,
    k_sn,
    v_sb,
    v_sh,
    v_sn,
    positions_sb,
    positions_ss,
    tokens,
    count,
    scale,
    SOFTCAP: tl.constexpr,
    KV_SHARE: tl.constexpr,
    CHOICE_SHARE: tl.constexpr,
    POSITIONS_SHARE: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    DP: tl.constexpr,
    DVP: tl.constexpr,
    START: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    R: tl.constexpr,
    K: tl.constexpr,
):
    """One tile: up to ``R // TILE_HEADS`` rows that chose one unit, which is read once for all their heads.

    Grid: (tiles, sharing groups · parts of a group, batch). order: (row, choice) pairs ``row · count + choice`` by
    unit. tiles: ``[.., tiles, 3]``, a tile's unit, its first place in the order, and how many places it takes (0 if
    it has nothing to do). parts ``[batch, heads, rows, count, DV]`` and their lse get a pair's own softmax.
    """
    STEPS: tl.constexpr = (SIZE + K - 1) // K
    b, s, of_all, g = program_heads(R, GROUP, TILE_HEADS)
    choice = of_all // CHOICE_SHARE
    tiles_ptr += (choice * tl.num_programs(0) + tl.program_id(0)) * 3
    unit = tl.load(tiles_ptr).to(tl.int64)
    first = tl.load(tiles_ptr + 1)
    places = tl.load(tiles_ptr + 2)
    if places > 0:
        r = tl.arange(0, R)
        used = (r // TILE_HEADS < places) & (g < GROUP)
        head = s * GROUP + g
        place = choice * tokens * count + first + r // TILE_HEADS
        pair = tl.load(order_ptr + place, mask=used, other=0).to(tl.int64)
        position_at = b * positions_sb + s // POSITIONS_SHARE * positions_ss + pair
        cos_sin_at = tl.load(positions_ptr + position_at, mask=used, other=0).to(tl.int64) * HALF
        q_at = b * q_sb + head * q_sh + pair // count * q_st + pair % count * q_sn
        q = load_rotated(q_ptr, q_at, used, cos_ptr, sin_ptr, cos_sin_at, D, DP, START, HALF, INTERLEAVED)
        q = narrowed(q, q_ptr.dtype.element_ty)
        k_ptr += b * k_sb + s // KV_SHARE * k_sh
        v_ptr += b * v_sb + s // KV_SHARE * v_sh

        acc, top, total = unseen(R, DVP)
        e = tl.arange(0, K)
        for at in range(STEPS):
            token = at * K + e
            acc, top, total = gathered_step(
                acc, top, total, q, k_ptr, v_ptr, k_sn, v_sn, unit * SIZE + token, token < SIZE, cos_ptr, sin_ptr,
                unit, scale, SOFTCAP, D, DV, DP, DVP, START, 0, INTERLEAVED, False, SIZE % K != 0,
            )  # fmt: skip

        part = (of_all * GROUP + g) * tokens * count + pair
        store_finished(acc, top, total, parts_ptr, lse_ptr, part * DV, part, used, DV, DVP)
