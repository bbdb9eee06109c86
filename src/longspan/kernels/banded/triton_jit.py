"""The Triton kernel of banded attention. Importing this module imports Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from longspan.kernels.gpu.primitives import (
    load_rotated,
    load_rows,
    narrowed,
    program_heads,
    step,
    store_finished,
    unseen,
)

_FAR = tl.constexpr(1 << 30)  # beyond every key


@triton.jit
def _reach(ranges_ptr, band, t, used, tokens, K: tl.constexpr):
    """Each row's keys ``lo, hi [R]`` in a band, the tile's ``begin, end``, and ``a, z``: no mask is needed in between.

    ``a`` and ``z`` are whole steps of ``K`` keys after ``begin``, or equal.
    """
    at = band.to(tl.int64) * 2 * tokens + t
    lo = tl.load(ranges_ptr + at, mask=used, other=0)
    hi = tl.load(ranges_ptr + at + tokens, mask=used, other=0)
    some = used & (lo < hi)
    begin = tl.min(tl.where(some, lo, _FAR), 0)
    end = tl.max(tl.where(some, hi, 0), 0)
    # Rows that fill up the tile are never stored, so they need no mask; rows with an empty range do.
    latest = tl.max(tl.where(used, tl.where(some, lo, _FAR), 0), 0)
    soonest = tl.min(tl.where(used, tl.where(some, hi, 0), _FAR), 0)
    a = begin + tl.cdiv(tl.maximum(latest - begin, 0), K) * K
    z = begin + tl.maximum(soonest - begin, 0) // K * K
    end = tl.maximum(begin, end)
    a = tl.minimum(a, end)
    return lo, hi, begin, end, a, tl.maximum(a, z)


@triton.jit
def _walk(
    acc,
    top,
    total,
    q,
    k_ptr,
    v_ptr,
    pages_ptr,
    k_sn,
    v_sn,
    page_step,
    lo,
    hi,
    start,
    stop,
    end,
    scale,
    SOFTCAP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    DP: tl.constexpr,
    DVP: tl.constexpr,
    K: tl.constexpr,
    PAGE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The online softmax over keys ``start : stop``, of which none at ``end`` or beyond is read."""
    n = tl.arange(0, K)
    for first in range(start, stop, K):
        j = first + n
        if PAGE > 0:
            page = tl.load(pages_ptr + j // PAGE, mask=j < end, other=0)
            at = page.to(tl.int64) * page_step + j % PAGE
            k = load_rows(k_ptr, at * k_sn, j < end, D, DP, MASKED)
            v = load_rows(v_ptr, at * v_sn, j < end, DV, DVP, MASKED)
        else:
            k = load_rows(k_ptr + tl.cast(first, tl.int64) * k_sn, n * k_sn, j < end, D, DP, MASKED)
            v = load_rows(v_ptr + tl.cast(first, tl.int64) * v_sn, n * v_sn, j < end, DV, DVP, MASKED)
        seen = (j[None, :] >= lo[:, None]) & (j[None, :] < hi[:, None])
        acc, top, total = step(acc, top, total, q, tl.trans(k), v, seen, scale, SOFTCAP, MASKED)
    return acc, top, total


@triton.jit(do_not_specialize=["tokens", "shift", "maps", "bands", "plans", "splits"])
def banded(
    q_ptr,
    k0_ptr,
    k1_ptr,
    k2_ptr,
    k3_ptr,
    v_ptr,
    cos_ptr,
    sin_ptr,
    ranges_ptr,
    pages_ptr,
    out_ptr,
    lse_ptr,
    q_sb,
    q_sh,
    q_st,
    q_sband,
    k_sb,
    k_sh,
    k_sn,
    v_sb,
    v_sh,
    v_sn,
    out_sb,
    out_sh,
    out_st,
    pages_sb,
    page_step,
    tokens,
    shift,
    maps,
    bands,
    plans,
    splits,
    scale,
    SOFTCAP: tl.constexpr,
    MAPS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    SPLIT: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    DP: tl.constexpr,
    DVP: tl.constexpr,
    START: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    R: tl.constexpr,
    K: tl.constexpr,
    PAGE: tl.constexpr,
):
    """One tile: ``R // TILE_HEADS`` tokens of ``TILE_HEADS`` query heads of a key head, over all bands.

    Grid: (tiles · ``splits``, key heads · parts of a group, batch). The first tile begins ``shift`` tokens early, so
    that tiles lie at multiples of their size in the row's own count, as chunks often do.

    q: with ``HALF = 0`` rotated already, one copy a band ``q_sband`` apart. ranges: ``[plans, bands, 2, tokens]``
    int32. cos, sin: ``[bands, plans, tokens, HALF]``. ``plans`` is 1 if all rows of the batch see the same places, and
    else the size of the batch. ``maps`` holds two bits a band: which of the keys it reads. out: by ``out_s*``, with
    ``splits`` parts of a row side by side; lse ``[batch, heads, tokens, splits]``.
    pages: with ``PAGE > 0`` tokens a page ``[batch, any]`` int32, a row's pages, ``page_step`` keys apart; with
    ``PAGE = 0`` a row's keys lie one after the other.
    """
    TOKENS: tl.constexpr = R // TILE_HEADS
    # Later tiles see more keys; begun first, they leave no long tail.
    tile = tl.num_programs(0) // splits - 1 - tl.program_id(0) // splits
    split = tl.program_id(0) % splits
    b, kv_head, of_all, g = program_heads(R, GROUP, TILE_HEADS)
    head = kv_head * GROUP + g
    r = tl.arange(0, R)
    t = tile * TOKENS - shift + r // TILE_HEADS
    used = (t >= 0) & (t < tokens) & (g < GROUP) & (r < TOKENS * TILE_HEADS)
    q_at = b * q_sb + head * q_sh + t.to(tl.int64) * q_st
    k_at = b * k_sb + kv_head * k_sh
    v_ptr += b * v_sb + kv_head * v_sh
    plan = tl.where(plans > 1, b, 0).to(tl.int64)
    ranges_ptr += plan * bands * 2 * tokens
    pages_ptr += b * pages_sb

    acc, top, total = unseen(R, DVP)
    share = 0
    done = 0
    if SPLIT:
        steps = 0
        for band in range(bands):
            lo, hi, begin, end, a, z = _reach(ranges_ptr, tl.cast(band, tl.int32), t, used, tokens, K)
            steps += tl.cdiv(end - begin, K)
        share = tl.cdiv(steps, splits)

    for band in range(bands):
        lo, hi, begin, end, a, z = _reach(ranges_ptr, tl.cast(band, tl.int32), t, used, tokens, K)
        first = begin
        last = end
        if SPLIT:
            # This program's steps are share · split and on, counted through all bands.
            steps = tl.cdiv(end - begin, K)
            first = begin + tl.minimum(tl.maximum(split * share - done, 0), steps) * K
            last = tl.minimum(begin + tl.maximum((split + 1) * share - done, 0) * K, end)
            done += steps
        if first < last:
            cos_sin_at = ((tl.cast(band, tl.int64) * plans + plan) * tokens + t) * HALF
            q_rows = q_at + tl.cast(band, tl.int64) * q_sband
            q = load_rotated(q_ptr, q_rows, used, cos_ptr, sin_ptr, cos_sin_at, D, DP, START, HALF, INTERLEAVED)
            q = narrowed(q, q_ptr.dtype.element_ty)
            k_ptr = k0_ptr
            if MAPS > 1:
                which = (maps >> (2 * band)) & 3
                k_ptr = tl.where(which == 1, k1_ptr, k_ptr)
                k_ptr = tl.where(which == 2, k2_ptr, k_ptr)
                k_ptr = tl.where(which == 3, k3_ptr, k_ptr)
            k_ptr += k_at
            a = tl.minimum(tl.maximum(a, first), last)
            z = tl.minimum(tl.maximum(z, a), last)
            acc, top, total = _walk(
                acc, top, total, q, k_ptr, v_ptr, pages_ptr, k_sn, v_sn, page_step, lo, hi, first, a, end, scale,
                SOFTCAP, D, DV, DP, DVP, K, PAGE, True,
            )  # fmt: skip
            acc, top, total = _walk(
                acc, top, total, q, k_ptr, v_ptr, pages_ptr, k_sn, v_sn, page_step, lo, hi, a, z, end, scale,
                SOFTCAP, D, DV, DP, DVP, K, PAGE, False,
            )  # fmt: skip
            acc, top, total = _walk(
                acc, top, total, q, k_ptr, v_ptr, pages_ptr, k_sn, v_sn, page_step, lo, hi, z, last, end, scale,
                SOFTCAP, D, DV, DP, DVP, K, PAGE, True,
            )  # fmt: skip

    out_at = b * out_sb + head * out_sh + t.to(tl.int64) * out_st + split * DV
    lse_at = ((of_all * GROUP + g) * tokens + t) * splits + split
    store_finished(acc, top, total, out_ptr, lse_ptr, out_at, lse_at, used, DV, DVP)
