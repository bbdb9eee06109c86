"""Triton kernels of gathered attention, which read keys and values where they lie. Importing this imports Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from longspan.kernels.jit import finished, load_turned, narrowed, step


@triton.jit
def _attend(
    acc,
    top,
    total,
    q,
    k_ptr,
    v_ptr,
    k_sn,
    v_sn,
    tokens,
    there,
    cos_ptr,
    sin_ptr,
    turn_at,
    scale,
    softcap,
    D: tl.constexpr,
    DV: tl.constexpr,
    DP: tl.constexpr,
    DVP: tl.constexpr,
    START: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BACK: tl.constexpr,
    MASKED: tl.constexpr,
    CAPPED: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """A step over keys ``tokens [K]`` (int64), those that are ``there [K]`` if ``MASKED``; ``HALF > 0`` turns them."""
    c = tl.arange(0, DP)
    d = tl.arange(0, DVP)
    v_at = v_ptr + tokens[:, None] * v_sn + d[None, :]
    if HALF > 0:
        k = load_turned(k_ptr, tokens * k_sn, there, cos_ptr, sin_ptr, turn_at, D, DP, START, HALF, INTERLEAVED, BACK)
        k = narrowed(k, k_ptr.dtype.element_ty, WIDEN)
    else:
        k_at = k_ptr + tokens[:, None] * k_sn + c[None, :]
        if MASKED:
            k = tl.load(k_at, mask=there[:, None] & (c < D)[None, :], other=0.0)
        else:
            k = tl.load(k_at) if D == DP else tl.load(k_at, mask=(c < D)[None, :], other=0.0)
    if MASKED:
        v = tl.load(v_at, mask=there[:, None] & (d < DV)[None, :], other=0.0)
    else:
        v = tl.load(v_at) if DV == DVP else tl.load(v_at, mask=(d < DV)[None, :], other=0.0)
    return step(acc, top, total, q, tl.trans(k), v, there[None, :], scale, softcap, MASKED, CAPPED, WIDEN)


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
    units_sb,
    units_ss,
    positions_sb,
    positions_ss,
    out_sb,
    out_sh,
    out_st,
    heads,
    tokens,
    count,
    splits,
    scale,
    softcap,
    KV_SHARE: tl.constexpr,
    UNITS_SHARE: tl.constexpr,
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
    CAPPED: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One row: the query heads that share its ``count`` units walk them.

    Grid: (rows · ``splits``, sharing groups · pieces of a group, batch); ``*_SHARE`` groups share a key head, a choice,
    positions. ``SLOTS`` is for units shorter than a step: the keys of several units make a step, and each is turned
    back by its unit's position, since the query can be turned to one position only. units, positions: ``[.., rows,
    count]``, the last two dimensions contiguous. q: with ``HALF = 0`` turned already, one copy a unit ``q_sn`` apart.
    """
    PIECES: tl.constexpr = (GROUP + TILE_HEADS - 1) // TILE_HEADS
    STEPS: tl.constexpr = (SIZE + K - 1) // K
    t = tl.program_id(0) // splits
    split = tl.program_id(0) % splits
    s = tl.program_id(1) // PIECES
    b = tl.program_id(2).to(tl.int64)
    r = tl.arange(0, R)
    g = tl.program_id(1) % PIECES * TILE_HEADS + r
    used = (r < TILE_HEADS) & (g < GROUP)
    head = (s * GROUP + g).to(tl.int64)
    q_at = b * q_sb + head * q_sh + t.to(tl.int64) * q_st
    k_ptr += b * k_sb + (s // KV_SHARE).to(tl.int64) * k_sh
    v_ptr += b * v_sb + (s // KV_SHARE).to(tl.int64) * v_sh
    row = t.to(tl.int64) * count
    units_ptr += b * units_sb + (s // UNITS_SHARE).to(tl.int64) * units_ss + row
    positions_ptr += b * positions_sb + (s // POSITIONS_SHARE).to(tl.int64) * positions_ss + row

    acc = tl.zeros([R, DVP], tl.float32)
    top = tl.full([R], float("-inf"), tl.float32)
    total = tl.zeros([R], tl.float32)
    e = tl.arange(0, K)
    if SLOTS:
        q = load_turned(q_ptr, q_at, used, cos_ptr, sin_ptr, q_at, D, DP, START, 0, INTERLEAVED, False)
        q = narrowed(q, q_ptr.dtype.element_ty, WIDEN)
        share = tl.cdiv(tl.cdiv(count * SIZE, K), splits) * K
        for first in range(split * share, tl.minimum((split + 1) * share, count * SIZE), K):
            slot = first + e
            there = slot < count * SIZE
            unit = tl.load(units_ptr + slot // SIZE, mask=there, other=0).to(tl.int64)
            turn_at = tl.load(positions_ptr + slot // SIZE, mask=there, other=0).to(tl.int64) * HALF
            acc, top, total = _attend(
                acc, top, total, q, k_ptr, v_ptr, k_sn, v_sn, unit * SIZE + slot % SIZE, there, cos_ptr, sin_ptr,
                turn_at, scale, softcap, D, DV, DP, DVP, START, HALF, INTERLEAVED, True, True, CAPPED, WIDEN,
            )  # fmt: skip
    else:
        share = tl.cdiv(count * STEPS, splits)
        begin = split * share
        end = tl.minimum(begin + share, count * STEPS)
        for n in range(begin // STEPS, tl.cdiv(end, STEPS)):
            unit = tl.load(units_ptr + n).to(tl.int64)
            turn_at = tl.load(positions_ptr + n).to(tl.int64) * HALF + tl.zeros([R], tl.int64)
            own = q_at + tl.cast(n, tl.int64) * q_sn
            q = load_turned(q_ptr, own, used, cos_ptr, sin_ptr, turn_at, D, DP, START, HALF, INTERLEAVED, False)
            q = narrowed(q, q_ptr.dtype.element_ty, WIDEN)
            for at in range(tl.maximum(begin - n * STEPS, 0), tl.minimum(end - n * STEPS, STEPS)):
                token = at * K + e
                acc, top, total = _attend(
                    acc, top, total, q, k_ptr, v_ptr, k_sn, v_sn, unit * SIZE + token, token < SIZE, cos_ptr, sin_ptr,
                    unit, scale, softcap, D, DV, DP, DVP, START, 0, INTERLEAVED, False, SIZE % K != 0, CAPPED, WIDEN,
                )  # fmt: skip

    out, lse = finished(acc, top, total)
    d = tl.arange(0, DVP)
    out_at = b * out_sb + head * out_sh + t.to(tl.int64) * out_st + split * DV
    tl.store(
        out_ptr + out_at[:, None] + d[None, :],
        narrowed(out, out_ptr.dtype.element_ty, WIDEN),
        mask=used[:, None] & (d < DV)[None, :],
    )
    tl.store(lse_ptr + ((b * heads + head) * tokens + t) * splits + split, lse, mask=used)


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
    order_sb,
    order_ss,
    tiles_sb,
    tiles_ss,
    positions_sb,
    positions_ss,
    heads,
    tokens,
    count,
    scale,
    softcap,
    KV_SHARE: tl.constexpr,
    UNITS_SHARE: tl.constexpr,
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
    CAPPED: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One tile: up to ``R // TILE_HEADS`` rows that chose one unit, which is read once for all their heads.

    Grid: (tiles, sharing groups · pieces of a group, batch). order: (row, choice) pairs ``row · count + choice`` by
    unit. tiles: ``[.., tiles, 3]``, a tile's unit, its first place in the order, and how many places it takes (0 where
    it has nothing to do). parts ``[batch, heads, rows, count, DV]`` and their lse get a pair's own softmax.
    """
    PIECES: tl.constexpr = (GROUP + TILE_HEADS - 1) // TILE_HEADS
    STEPS: tl.constexpr = (SIZE + K - 1) // K
    s = tl.program_id(1) // PIECES
    b = tl.program_id(2).to(tl.int64)
    choice = (s // UNITS_SHARE).to(tl.int64)
    tiles_ptr += b * tiles_sb + choice * tiles_ss + tl.program_id(0) * 3
    unit = tl.load(tiles_ptr).to(tl.int64)
    first = tl.load(tiles_ptr + 1)
    places = tl.load(tiles_ptr + 2)
    if places > 0:
        r = tl.arange(0, R)
        g = tl.program_id(1) % PIECES * TILE_HEADS + r % TILE_HEADS
        used = (r // TILE_HEADS < places) & (g < GROUP)
        head = (s * GROUP + g).to(tl.int64)
        place = b * order_sb + choice * order_ss + first + r // TILE_HEADS
        pair = tl.load(order_ptr + place, mask=used, other=0).to(tl.int64)
        position_at = b * positions_sb + (s // POSITIONS_SHARE).to(tl.int64) * positions_ss + pair
        turn_at = tl.load(positions_ptr + position_at, mask=used, other=0).to(tl.int64) * HALF
        q_at = b * q_sb + head * q_sh + pair // count * q_st + pair % count * q_sn
        q = load_turned(q_ptr, q_at, used, cos_ptr, sin_ptr, turn_at, D, DP, START, HALF, INTERLEAVED, False)
        q = narrowed(q, q_ptr.dtype.element_ty, WIDEN)
        k_ptr += b * k_sb + (s // KV_SHARE).to(tl.int64) * k_sh
        v_ptr += b * v_sb + (s // KV_SHARE).to(tl.int64) * v_sh

        acc = tl.zeros([R, DVP], tl.float32)
        top = tl.full([R], float("-inf"), tl.float32)
        total = tl.zeros([R], tl.float32)
        e = tl.arange(0, K)
        for at in range(STEPS):
            token = at * K + e
            acc, top, total = _attend(
                acc, top, total, q, k_ptr, v_ptr, k_sn, v_sn, unit * SIZE + token, token < SIZE, cos_ptr, sin_ptr,
                unit, scale, softcap, D, DV, DP, DVP, START, 0, INTERLEAVED, False, SIZE % K != 0, CAPPED, WIDEN,
            )  # fmt: skip

        out, lse = finished(acc, top, total)
        d = tl.arange(0, DVP)
        part = (b * heads + head) * tokens * count + pair
        tl.store(
            parts_ptr + part[:, None] * DV + d[None, :],
            narrowed(out, parts_ptr.dtype.element_ty, WIDEN),
            mask=used[:, None] & (d < DV)[None, :],
        )
        tl.store(lse_ptr + part, lse, mask=used)


@triton.jit(do_not_specialize=["rows", "count", "runs", "splits"])
def by_piece(
    q_ptr,
    k_ptr,
    v_ptr,
    tokens_ptr,
    ends_ptr,
    cos_ptr,
    sin_ptr,
    key_cos_ptr,
    key_sin_ptr,
    out_ptr,
    lse_ptr,
    q_srun,
    q_sb,
    q_sh,
    q_st,
    k_sb,
    k_sh,
    k_sn,
    v_sb,
    v_sh,
    v_sn,
    tokens_sb,
    tokens_ss,
    ends_sb,
    ends_ss,
    out_sb,
    out_sh,
    out_st,
    heads,
    rows,
    count,
    runs,
    splits,
    scale,
    softcap,
    KV_SHARE: tl.constexpr,
    TOKENS_SHARE: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    DP: tl.constexpr,
    DVP: tl.constexpr,
    START: tl.constexpr,
    HALF: tl.constexpr,
    KEY_HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    R: tl.constexpr,
    K: tl.constexpr,
    CAPPED: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One tile: ``R // TILE_HEADS`` rows of the query heads that share ``count`` tokens walk these, run by run.

    Grid: (tiles · ``splits``, sharing groups · pieces of a group, batch). ends ``[.., runs]``: one past a run's last
    token. cos, sin ``[runs, rows, HALF]``; with ``HALF = 0`` q is turned already, one copy a run ``q_srun`` apart.
    key_cos, key_sin ``[count, KEY_HALF]``; with ``KEY_HALF = 0`` keys stay as stored.
    """
    PIECES: tl.constexpr = (GROUP + TILE_HEADS - 1) // TILE_HEADS
    ROWS: tl.constexpr = R // TILE_HEADS
    tile = tl.program_id(0) // splits
    split = tl.program_id(0) % splits
    s = tl.program_id(1) // PIECES
    b = tl.program_id(2).to(tl.int64)
    r = tl.arange(0, R)
    t = tile * ROWS + r // TILE_HEADS
    g = tl.program_id(1) % PIECES * TILE_HEADS + r % TILE_HEADS
    used = (t < rows) & (g < GROUP) & (r < ROWS * TILE_HEADS)
    head = (s * GROUP + g).to(tl.int64)
    q_at = b * q_sb + head * q_sh + t.to(tl.int64) * q_st
    k_ptr += b * k_sb + (s // KV_SHARE).to(tl.int64) * k_sh
    v_ptr += b * v_sb + (s // KV_SHARE).to(tl.int64) * v_sh
    tokens_ptr += b * tokens_sb + (s // TOKENS_SHARE).to(tl.int64) * tokens_ss
    ends_ptr += b * ends_sb + (s // TOKENS_SHARE).to(tl.int64) * ends_ss

    acc = tl.zeros([R, DVP], tl.float32)
    top = tl.full([R], float("-inf"), tl.float32)
    total = tl.zeros([R], tl.float32)
    e = tl.arange(0, K)
    share = tl.cdiv(tl.cdiv(count, K), splits) * K
    done = 0
    for run in range(runs):
        end = tl.load(ends_ptr + run).to(tl.int32)
        begin = tl.maximum(done, split * share)
        stop = tl.minimum(end, (split + 1) * share)
        if begin < stop:
            turn_at = (tl.cast(run, tl.int64) * rows + t) * HALF
            own = q_at + tl.cast(run, tl.int64) * q_srun
            q = load_turned(q_ptr, own, used, cos_ptr, sin_ptr, turn_at, D, DP, START, HALF, INTERLEAVED, False)
            q = narrowed(q, q_ptr.dtype.element_ty, WIDEN)
            for first in range(begin, stop, K):
                place = first + e
                there = place < stop
                token = tl.load(tokens_ptr + place, mask=there, other=0).to(tl.int64)
                acc, top, total = _attend(
                    acc, top, total, q, k_ptr, v_ptr, k_sn, v_sn, token, there, key_cos_ptr, key_sin_ptr,
                    place.to(tl.int64) * KEY_HALF, scale, softcap, D, DV, DP, DVP, START, KEY_HALF, INTERLEAVED, False,
                    True, CAPPED, WIDEN,
                )  # fmt: skip
        done = end

    out, lse = finished(acc, top, total)
    d = tl.arange(0, DVP)
    out_at = b * out_sb + head * out_sh + t.to(tl.int64) * out_st + split * DV
    tl.store(
        out_ptr + out_at[:, None] + d[None, :],
        narrowed(out, out_ptr.dtype.element_ty, WIDEN),
        mask=used[:, None] & (d < DV)[None, :],
    )
    tl.store(lse_ptr + ((b * heads + head) * rows + t) * splits + split, lse, mask=used)
