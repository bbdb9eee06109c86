"""Parts of Triton kernels: rotated rows, a step of an online softmax, and the merge of partial softmaxes.

``R`` rows of a tile, ``K`` keys of a step; ``DP`` is a head size padded to a power of two. Scores are kept in base 2,
because that is what a GPU exponentiates. Importing this module imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def narrowed(x, dtype: tl.constexpr):
    """fp32 ``x`` rounded to ``dtype``, to the nearest."""
    if INTERPRETED and dtype == tl.bfloat16:
        # The interpreter cuts the low half off instead; what is left of a number rounded before survives that.
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        x = bits.to(tl.float32, bitcast=True)
    return x.to(dtype)


INTERPRETED = tl.constexpr(not isinstance(narrowed, triton.JITFunction))


@triton.jit
def product(a, b, acc):
    """``acc + a @ b`` in fp32."""
    if INTERPRETED:  # it multiplies bf16 as the integers that it stores them as, without a word
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def program_heads(R: tl.constexpr, GROUP: tl.constexpr, TILE_HEADS: tl.constexpr):
    """Where a program is in a grid (any, sharing groups · parts of a group of heads, batch).

    Its row of the batch, its sharing group in that row and in all rows, and for each row of its tile the head ``[R]``
    of the group, which a row at ``GROUP`` or beyond has none of.
    """
    PARTS: tl.constexpr = (GROUP + TILE_HEADS - 1) // TILE_HEADS
    b = tl.program_id(2).to(tl.int64)
    s = (tl.program_id(1) // PARTS).to(tl.int64)
    g = tl.program_id(1) % PARTS * TILE_HEADS + tl.arange(0, R) % TILE_HEADS
    return b, s, b * (tl.num_programs(1) // PARTS) + s, g


@triton.jit
def load_rows(x_ptr, at, there, D: tl.constexpr, DP: tl.constexpr, MASKED: tl.constexpr):
    """Rows ``[K, DP]`` at offsets ``at [K]``, those ``there [K]`` if ``MASKED``."""
    c = tl.arange(0, DP)
    x_at = x_ptr + (at[:, None] + c[None, :])
    if MASKED:
        x = tl.load(x_at, mask=there[:, None] & (c < D)[None, :], other=0.0)
    elif D == DP:
        x = tl.load(x_at)
    else:
        x = tl.load(x_at, mask=(c < D)[None, :], other=0.0)
    return x


@triton.jit
def load_rotated(
    x_ptr,
    at,
    used,
    cos_ptr,
    sin_ptr,
    cos_sin_at,
    D: tl.constexpr,
    DP: tl.constexpr,
    START: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BACK: tl.constexpr = False,
):
    """Rows ``[R, DP]`` at offsets ``at [R]``, in fp32, rotated by the rows of cos and sin at ``cos_sin_at [R]``.

    If all channels are rotated, each is loaded once, sixteen bytes at a time. Else each channel takes its pair's
    other channel from memory once more: one formula for every layout, but loads of one number each. ``BACK`` rotates
    the other way; with ``HALF = 0`` nothing is rotated.
    """
    c = tl.arange(0, DP)
    if HALF > 0 and (2 * HALF == DP and D == DP):  # Triton 3.2 takes no chain of them
        h = tl.arange(0, HALF)
        if INTERLEAVED:
            x = tl.load(x_ptr + at[:, None] + c[None, :], mask=used[:, None], other=0.0).to(tl.float32)
            a, b = tl.split(tl.reshape(x, [x.shape[0], HALF, 2]))
        else:
            a = tl.load(x_ptr + at[:, None] + h[None, :], mask=used[:, None], other=0.0).to(tl.float32)
            b = tl.load(x_ptr + at[:, None] + (HALF + h)[None, :], mask=used[:, None], other=0.0).to(tl.float32)
        cos = tl.load(cos_ptr + cos_sin_at[:, None] + h[None, :], mask=used[:, None], other=1.0)
        sin = tl.load(sin_ptr + cos_sin_at[:, None] + h[None, :], mask=used[:, None], other=0.0)
        if BACK:
            sin = -sin
        x = tl.join(a * cos - b * sin, b * cos + a * sin)
        if not INTERLEAVED:
            x = tl.permute(x, (0, 2, 1))
        x = tl.reshape(x, [x.shape[0], DP])
    else:
        whole = used[:, None] & (c < D)[None, :]
        x = tl.load(x_ptr + at[:, None] + c[None, :], mask=whole, other=0.0).to(tl.float32)
        if HALF > 0:
            u = c - START
            if INTERLEAVED:
                pair = u // 2
                first = u % 2 == 0
                partner = tl.where(first, c + 1, c - 1)
            else:
                first = u < HALF
                pair = tl.where(first, u, u - HALF)
                partner = tl.where(first, c + HALF, c - HALF)
            inside = used[:, None] & ((u >= 0) & (u < 2 * HALF))[None, :]
            y = tl.load(x_ptr + at[:, None] + partner[None, :], mask=inside, other=0.0).to(tl.float32)
            cos = tl.load(cos_ptr + cos_sin_at[:, None] + pair[None, :], mask=inside, other=1.0)
            sin = tl.load(sin_ptr + cos_sin_at[:, None] + pair[None, :], mask=inside, other=0.0)
            if BACK:
                sin = -sin
            x = x * cos + tl.where(first[None, :], -y, y) * sin
    return x


@triton.jit
def unseen(R: tl.constexpr, DVP: tl.constexpr):
    """The state of an online softmax before its first step.

    ``acc [R, DVP]``, ``top [R]``, ``total [R]``: weighted values, largest score in base 2, sum of weights.
    """
    return tl.zeros([R, DVP], tl.float32), tl.full([R], float("-inf"), tl.float32), tl.zeros([R], tl.float32)


@triton.jit
def step(acc, top, total, q, k, v, seen, scale, SOFTCAP: tl.constexpr, MASKED: tl.constexpr):
    """One step of the online softmax: ``q [R, DP]``, ``k [DP, K]``, ``v [K, DVP]``; ``seen [R, K]`` if ``MASKED``."""
    scores = product(q, k, tl.zeros([q.shape[0], k.shape[1]], tl.float32))
    if SOFTCAP > 0:
        # tanh by exp of a negative number: nothing overflows. Of numbers below an eighth a sum of three terms, within
        # 2e-7 of it: 1 - small would have few digits of theirs.
        bounded = scores * (scale / SOFTCAP)
        small, square = tl.exp2(tl.abs(bounded) * (-2.0 * _LOG2E)), bounded * bounded
        tanh = (1.0 - small) / (1.0 + small)
        few = (square * (2.0 / 15) - 1.0 / 3) * square * bounded + bounded
        scores = tl.where(tl.abs(bounded) < 0.125, few, tl.where(bounded < 0, -tanh, tanh))
        scale = SOFTCAP
    if MASKED:
        scores = tl.where(seen, scores, float("-inf"))
    # Scaled after the maximum is taken, in one operation with its subtraction.
    scale = scale * _LOG2E
    higher = tl.maximum(top, tl.max(scores, 1) * scale)
    # A row that has seen no key yet, or such alone as score -inf, has no finite maximum to subtract.
    shift = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores * scale - shift[:, None])
    fade = tl.exp2(top - shift)
    total = total * fade + tl.sum(weights, 1)
    return product(narrowed(weights, v.dtype), v, acc * fade[:, None]), higher, total


@triton.jit
def gathered_step(
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
    cos_sin_at,
    scale,
    SOFTCAP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    DP: tl.constexpr,
    DVP: tl.constexpr,
    START: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BACK: tl.constexpr,
    MASKED: tl.constexpr,
):
    """``step`` over keys ``tokens [K]`` (int64), those ``there [K]`` if ``MASKED``; ``HALF > 0`` rotates them."""
    if HALF > 0:
        k = load_rotated(
            k_ptr, tokens * k_sn, there, cos_ptr, sin_ptr, cos_sin_at, D, DP, START, HALF, INTERLEAVED, BACK
        )
        k = narrowed(k, k_ptr.dtype.element_ty)
    else:
        k = load_rows(k_ptr, tokens * k_sn, there, D, DP, MASKED)
    v = load_rows(v_ptr, tokens * v_sn, there, DV, DVP, MASKED)
    return step(acc, top, total, q, tl.trans(k), v, there[None, :], scale, SOFTCAP, MASKED)


@triton.jit
def finished(acc, top, total):
    """Output ``[R, DP]`` and natural log-sum-exp ``[R]`` in fp32; 0 and -inf for a row that saw no key."""
    some = total > 0
    safe = tl.where(some, total, 1.0)
    lse = tl.where(some, (top + tl.log2(safe)) * _LN2, float("-inf"))
    return acc / safe[:, None], lse


@triton.jit
def store_finished(acc, top, total, out_ptr, lse_ptr, out_at, lse_at, used, DV: tl.constexpr, DVP: tl.constexpr):
    """Store ``finished`` rows where ``used [R]``: the output at ``out_at [R]``, the log-sum-exp at ``lse_at [R]``."""
    out, lse = finished(acc, top, total)
    d = tl.arange(0, DVP)
    tl.store(
        out_ptr + out_at[:, None] + d[None, :],
        narrowed(out, out_ptr.dtype.element_ty),
        mask=used[:, None] & (d < DV)[None, :],
    )
    tl.store(lse_ptr + lse_at, lse, mask=used)


@triton.jit(do_not_specialize=["rows", "count", "tokens"])
def merge(
    parts_ptr,
    parts_lse_ptr,
    out_ptr,
    lse_ptr,
    rows,
    count,
    heads,
    tokens,
    out_sb,
    out_sh,
    out_st,
    DV: tl.constexpr,
    DVP: tl.constexpr,
    R: tl.constexpr,
    P: tl.constexpr,
):
    """Parts ``[rows, count, DV]`` and ``[rows, count]`` of one softmax as a whole; a row is (batch, head, token).

    ``R`` rows of a program, ``P`` parts of a step, which are loaded at once.
    """
    r = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    used = r < rows
    n = tl.arange(0, P)
    d = tl.arange(0, DVP)
    acc, top, total = unseen(R, DVP)
    for first in range(0, count, P):
        at = r[:, None] * count + first + n[None, :]
        there = used[:, None] & (first + n < count)[None, :]
        lse = tl.load(parts_lse_ptr + at, mask=there, other=float("-inf")) * _LOG2E
        higher = tl.maximum(top, tl.max(lse, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(lse - shift[:, None])
        fade = tl.exp2(top - shift)
        channels = there[:, :, None] & (d < DV)[None, None, :]
        part = tl.load(parts_ptr + (at[:, :, None] * DV + d[None, None, :]), mask=channels, other=0.0).to(tl.float32)
        acc = acc * fade[:, None] + tl.sum(part * weights[:, :, None], 1)
        total = total * fade + tl.sum(weights, 1)
        top = higher
    head = r // tokens
    at = (head // heads) * out_sb + (head % heads) * out_sh + (r % tokens) * out_st
    store_finished(acc, top, total, out_ptr, lse_ptr, at, r, used, DV, DVP)


@triton.jit(do_not_specialize=["tokens"])
def merge_into(
    out_ptr,
    lse_ptr,
    other_ptr,
    other_lse_ptr,
    out_sb,
    out_sh,
    out_st,
    lse_sb,
    lse_sh,
    lse_st,
    other_sb,
    other_sh,
    other_st,
    other_lse_sb,
    other_lse_sh,
    other_lse_st,
    tokens,
    DV: tl.constexpr,
    DVP: tl.constexpr,
    R: tl.constexpr,
):
    """A part of a softmax into another's ``out`` and ``lse``, in place. Grid: (tiles of tokens, heads, batch)."""
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    d = tl.arange(0, DVP)
    used = t < tokens
    channels = used[:, None] & (d < DV)[None, :]
    lse_at = lse_ptr + b * lse_sb + h * lse_sh + t * lse_st
    out_at = out_ptr + (b * out_sb + h * out_sh + t * out_st)[:, None] + d[None, :]
    other_at = other_ptr + (b * other_sb + h * other_sh + t * other_st)[:, None] + d[None, :]
    own = tl.load(lse_at, mask=used, other=float("-inf")) * _LOG2E
    theirs = tl.load(other_lse_ptr + b * other_lse_sb + h * other_lse_sh + t * other_lse_st, mask=used, other=0.0)
    theirs = theirs * _LOG2E
    top = tl.maximum(own, theirs)
    shift = tl.where(top == float("-inf"), 0.0, top)
    a = tl.exp2(own - shift)
    z = tl.exp2(theirs - shift)
    x = tl.load(out_at, mask=channels, other=0.0).to(tl.float32) * a[:, None]
    x += tl.load(other_at, mask=channels, other=0.0).to(tl.float32) * z[:, None]
    whole, lse = finished(x, shift, a + z)
    tl.store(out_at, narrowed(whole, out_ptr.dtype.element_ty), mask=channels)
    tl.store(lse_at, lse, mask=used)
