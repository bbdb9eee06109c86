"""Triton kernels of scores. Importing this imports Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from longspan.kernels.gpu.primitives import finished, load_rotated, load_rows, narrowed, product, step, unseen


@triton.jit(do_not_specialize=["heads", "tokens", "count", "chunks", "start"])
def token_scores(
    q_ptr,
    k_ptr,
    top_ptr,
    out_ptr,
    edges_ptr,
    stops_ptr,
    q_sb,
    q_sh,
    q_st,
    q_sc,
    k_sb,
    k_sh,
    k_sn,
    heads,
    tokens,
    count,
    chunks,
    start,
    TOPS: tl.constexpr,
    CHUNKS: tl.constexpr,
    STOPPED: tl.constexpr,
    PARTS: tl.constexpr,
    KV_SHARE: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    R: tl.constexpr,
    K: tl.constexpr,
):
    """``out [B, S, chunks, count]``: a key's largest distance of a score from ``top [B, S, T]``.

    With ``TOPS`` it is the best score of every query among a tile's keys, ``out [B, S, T, tiles]``, and ``top`` unread.
    Grid: (tiles of ``count`` keys, heads ``S`` of queries, batch · ``chunks``); ``KV_SHARE`` heads share a key head.
    ``CHUNKS`` is for queries that are cut at ``edges [chunks + 1]``, and of which each chunk meets the first ``stops
    [chunks]`` keys; a tile of later ones has nothing to do but to say that none is there. With ``STOPPED`` those keys
    count that are neither before ``start`` nor at ``stops [1]`` or behind; others have -inf.
    """
    b = (tl.program_id(2) // chunks).to(tl.int64)
    chunk = tl.program_id(2) % chunks
    head = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * K + tl.arange(0, K)
    begin = 0
    end = tokens
    met = count
    if CHUNKS:
        begin = tl.load(edges_ptr + chunk).to(tl.int32)
        end = tl.load(edges_ptr + chunk + 1).to(tl.int32)
        met = tl.load(stops_ptr + chunk).to(tl.int32)
    there = m < met
    if STOPPED:
        met = tl.load(stops_ptr).to(tl.int32)
        there = (m >= start) & (m < met)
        end = tl.where(tl.program_id(0) * K >= met, begin, end)  # of memory that no token fills yet nothing is scored
    best = tl.full([K], float("-inf"), tl.float32)
    row = b * heads + head
    q_ptr += b * q_sb + head * q_sh
    k_ptr += b * k_sb + (head // KV_SHARE) * k_sh
    if CHUNKS:
        beyond = tl.program_id(0) * K >= met
        if TOPS:
            for first in range(begin, tl.where(beyond, end, begin), R):
                t = first + tl.arange(0, R)
                at = (row * tokens + t) * tl.num_programs(0) + tl.program_id(0)
                tl.store(out_ptr + at, tl.full([R], float("-inf"), tl.float32), mask=t < end)
        end = tl.where(beyond, begin, end)
    for first in range(begin, end, R):
        t = first + tl.arange(0, R)
        used = t < end
        scores = tl.zeros([R, K], tl.float32)  # summed over parts
        for c in range(PARTS):
            part = tl.cast(c, tl.int64)  # of a long text the last key heads lie beyond 2³¹ numbers
            q = load_rows(q_ptr + part * q_sc, t.to(tl.int64) * q_st, used, D, DP, True)
            k = load_rows(k_ptr + part * k_sh, m.to(tl.int64) * k_sn, there, D, DP, True)
            scores = product(q, tl.trans(k), scores)
        if TOPS:
            top = tl.max(tl.where(there[None, :], scores, float("-inf")), 1)
            tl.store(out_ptr + (row * tokens + t) * tl.num_programs(0) + tl.program_id(0), top, mask=used)
        else:
            # Rows that no query is in are infinitely far from their best.
            top = tl.load(top_ptr + row * tokens + t, mask=used, other=float("inf"))
            best = tl.maximum(best, tl.max(scores - top[:, None], 0))
    if not TOPS:
        best = tl.where(there, best, float("-inf"))
        tl.store(out_ptr + (row * chunks + chunk) * count + m, best, mask=m < (count if STOPPED else met))


@triton.jit(do_not_specialize=["chunks"])
def representations(
    q_ptr,
    k_ptr,
    v_ptr,
    cos_ptr,
    sin_ptr,
    channels_ptr,
    out_ptr,
    q_sh,
    q_sc,
    q_sn,
    k_sh,
    k_sc,
    k_sn,
    v_sh,
    v_sc,
    v_sn,
    chunks,
    scale,
    SIZE: tl.constexpr,
    KV_SHARE: tl.constexpr,
    ORDERED: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    START: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    R: tl.constexpr,
    K: tl.constexpr,
):
    """One chunk and head, Eq 2 and then Eq 1: ``out [H, n, D]``, of keys that are rotated. Grid: (chunks, heads).

    With ``ORDERED`` values are read in the channels' order ``channels [D]``, in which their mean meets the keys.
    """
    n = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    q_ptr += head * q_sh + n * q_sc
    k_ptr += (head // KV_SHARE) * k_sh + n * k_sc
    v_ptr += (head // KV_SHARE) * v_sh + n * v_sc
    d = tl.arange(0, DP)
    channel = d
    if ORDERED:
        channel = tl.load(channels_ptr + d, mask=d < D, other=0)
    dtype = q_ptr.dtype.element_ty
    query = tl.zeros([DP], tl.float32)
    for first in range(0, SIZE, R):
        t = first + tl.arange(0, R)
        used = t < SIZE
        cos_sin_at = t * HALF
        q = load_rotated(q_ptr, t * q_sn, used, cos_ptr, sin_ptr, cos_sin_at, D, DP, START, HALF, INTERLEAVED)
        q = narrowed(q, dtype)
        acc, top, total = unseen(R, DP)
        for begin in range(0, SIZE, K):
            m = begin + tl.arange(0, K)
            there = m < SIZE
            k = load_rows(k_ptr, m * k_sn, there, D, DP, SIZE % K != 0)
            at = v_ptr + m[:, None] * v_sn + channel[None, :]
            v = tl.load(at, mask=there[:, None] & (d < D)[None, :], other=0.0)
            acc, top, total = step(acc, top, total, q, tl.trans(k), v, there[None, :], scale, 0.0, SIZE % K != 0)
        out, _ = finished(acc, top, total)
        query += tl.sum(tl.where(used[:, None], out, 0.0), 0)
    query /= SIZE

    # One query: products with it are sums, and its softmax has one maximum.
    whole = tl.zeros([DP], tl.float32)
    best = tl.full([1], float("-inf"), tl.float32)
    sums = tl.zeros([1], tl.float32)
    for begin in range(0, SIZE, K):
        m = begin + tl.arange(0, K)
        there = m < SIZE
        k = load_rows(k_ptr, m * k_sn, there, D, DP, SIZE % K != 0).to(tl.float32)
        scores = tl.where(there, tl.sum(k * query[None, :], 1) * scale, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 0))
        weights = tl.exp(scores - higher)
        fade = tl.exp(best - higher)
        sums = sums * fade + tl.sum(weights, 0)
        whole = whole * fade + tl.sum(weights[:, None] * k, 0)
        best = higher
    tl.store(out_ptr + (head * chunks + n) * D + d, whole / sums, mask=d < D)
