"""The Triton kernel of attention to tokens that a chunk's queries share. Importing this imports Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from longspan.kernels.gpu.primitives import gathered_step, load_rotated, narrowed, program_heads, store_finished, unseen


@triton.jit(do_not_specialize=["rows", "count", "runs", "chunks", "tall", "splits"])
def by_query_chunk(
    q_ptr,
    k_ptr,
    v_ptr,
    tokens_ptr,
    ends_ptr,
    edges_ptr,
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
    out_sb,
    out_sh,
    out_st,
    rows,
    count,
    runs,
    chunks,
    tall,
    splits,
    scale,
    CHUNKS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    KV_SHARE: tl.constexpr,
    CHOICE_SHARE: tl.constexpr,
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
):
    """One tile: ``R // TILE_HEADS`` rows of the query heads that share ``count`` tokens walk these, run by run.

    Grid: (``chunks`` · ``tall`` tiles · ``splits``, sharing groups · parts of a group, batch). tokens ``[.., chunks,
    count]``. ends ``[.., chunks, runs]``: one past a run's last token. cos, sin ``[runs, rows, HALF]``; with
    ``HALF = 0`` q is rotated already, one copy a run ``q_srun`` apart. key_cos, key_sin ``[count, KEY_HALF]``; with
    ``KEY_HALF = 0`` keys stay as stored. ``CHUNKS`` is for rows that are cut at ``edges [chunks + 1]``.
    """
    ROWS: tl.constexpr = R // TILE_HEADS
    chunk = tl.program_id(0) // splits // tall
    tile = tl.program_id(0) // splits % tall
    split = tl.program_id(0) % splits
    b, s, of_all, g = program_heads(R, GROUP, TILE_HEADS)
    head = s * GROUP + g
    r = tl.arange(0, R)
    first_row = tile * ROWS
    last_row = rows
    if CHUNKS:
        first_row += tl.load(edges_ptr + chunk).to(tl.int32)
        last_row = tl.load(edges_ptr + chunk + 1).to(tl.int32)
    t = first_row + r // TILE_HEADS
    used = (t < last_row) & (g < GROUP) & (r < ROWS * TILE_HEADS)
    q_at = b * q_sb + head * q_sh + t.to(tl.int64) * q_st
    k_ptr += b * k_sb + s // KV_SHARE * k_sh
    v_ptr += b * v_sb + s // KV_SHARE * v_sh
    tokens_ptr += (of_all // CHOICE_SHARE * chunks + chunk) * count
    ends_ptr += (of_all // CHOICE_SHARE * chunks + chunk) * runs

    acc, top, total = unseen(R, DVP)
    e = tl.arange(0, K)
    share = tl.cdiv(tl.cdiv(count, K), splits) * K
    done = 0
    for run in range(runs):
        end = tl.load(ends_ptr + run).to(tl.int32)
        begin = tl.maximum(done, split * share)
        stop = tl.minimum(end, (split + 1) * share)
        if CHUNKS:  # a shorter chunk has fewer tiles
            stop = tl.where(first_row < last_row, stop, begin)
        if begin < stop:
            cos_sin_at = (tl.cast(run, tl.int64) * rows + t) * HALF
            q_rows = q_at + tl.cast(run, tl.int64) * q_srun
            q = load_rotated(q_ptr, q_rows, used, cos_ptr, sin_ptr, cos_sin_at, D, DP, START, HALF, INTERLEAVED)
            q = narrowed(q, q_ptr.dtype.element_ty)
            for first in range(begin, stop, K):
                place = first + e
                there = place < stop
                token = tl.load(tokens_ptr + place, mask=there, other=0).to(tl.int64)
                acc, top, total = gathered_step(
                    acc, top, total, q, k_ptr, v_ptr, k_sn, v_sn, token, there, key_cos_ptr, key_sin_ptr,
                    place.to(tl.int64) * KEY_HALF, scale, SOFTCAP,
                    D, DV, DP, DVP, START, KEY_HALF, INTERLEAVED, False, True,
                )  # fmt: skip
        done = end

    out_at = b * out_sb + head * out_sh + t.to(tl.int64) * out_st + split * DV
    lse_at = ((of_all * GROUP + g) * rows + t) * splits + split
    store_finished(acc, top, total, out_ptr, lse_ptr, out_at, lse_at, used, DV, DVP)
