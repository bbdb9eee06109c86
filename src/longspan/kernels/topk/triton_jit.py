"""Triton kernels of top-k. Importing this imports Triton."""

from __future__ import annotations

import triton
import triton.language as tl

_LARGEST = tl.constexpr(3.4028234663852886e38)  # of fp32
_DIGITS = tl.constexpr(16)  # of two bits


@triton.jit
def row_stop(stops_ptr, row, tokens, stop, start, count, STOPS: tl.constexpr):
    """One past the last place of a row that counts, ``stop`` at most."""
    if STOPS:
        # With fewer places than are taken, those that follow count, so that every index is one of the row's.
        stop = tl.minimum(tl.load(stops_ptr + row % tokens), stop).to(tl.int32)
        stop = tl.maximum(stop, start + count)
    return stop


@triton.jit(do_not_specialize=["tokens", "n", "stop", "start", "count", "near", "tiles"])
def nearby(
    scores_ptr,
    stops_ptr,
    out_ptr,
    tokens,
    n,
    stop,
    start,
    count,
    near,
    tiles,
    STOPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``out [rows, n]``: each of ``scores [rows, n]`` that counts as the largest within ``near`` places; NaN stays.

    Grid: (rows · ``tiles`` of ``BLOCK`` places).
    """
    row = (tl.program_id(0) // tiles).to(tl.int64)
    stop = row_stop(stops_ptr, row, tokens, stop, start, count, STOPS)
    scores_ptr += row * n
    j = tl.program_id(0) % tiles * BLOCK + tl.arange(0, BLOCK)
    there = (j >= start) & (j < stop)
    own = tl.load(scores_ptr + j, mask=there, other=float("-inf"))
    largest = tl.where(own == own, own, float("-inf"))
    for by in range(1, near + 1):
        before = tl.load(scores_ptr + j - by, mask=there & (j - by >= start), other=float("-inf"))
        after = tl.load(scores_ptr + j + by, mask=there & (j + by < stop), other=float("-inf"))
        largest = tl.where(before > largest, before, largest)
        largest = tl.where(after > largest, after, largest)
    tl.store(out_ptr + row * n + j, tl.where(own == own, largest, own), mask=there)


@triton.jit(do_not_specialize=["tokens", "n", "stop", "start", "count"])
def topk(
    scores_ptr,
    stops_ptr,
    chosen_ptr,
    tokens,
    n,
    stop,
    start,
    count,
    tie,
    STOPS: tl.constexpr,
    TIE: tl.constexpr,
    LAST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of ``scores [rows, n]``, ``BLOCK`` places at a time: ``chosen [rows, count]``. Grid: (rows).

    The ``count``-th largest is found two bits at a time, from the highest, by how many scores reach each of the next
    three numbers; then every place is kept whose score is above it, or ties with it and comes early enough.
    """
    row = tl.program_id(0).to(tl.int64)
    stop = row_stop(stops_ptr, row, tokens, stop, start, count, STOPS)
    scores_ptr += row * n
    chosen_ptr += row * count
    e = tl.arange(0, BLOCK)

    strange = tl.zeros([BLOCK], tl.int32)
    most = tl.zeros([BLOCK], tl.float32)
    for first in range(start, stop, BLOCK):
        x = tl.load(scores_ptr + first + e, mask=first + e < stop, other=0.0)
        strange += (x != x).to(tl.int32)
        if TIE:
            most = tl.maximum(most, tl.where(x == x, tl.abs(x), 0.0))
    nans = tl.sum(strange, 0)

    least = tl.full([], -(2**31), tl.int32)  # in the order of integers, which is that of scores
    for digit in range(_DIGITS):
        by = tl.full([], 1, tl.int32) << (2 * (_DIGITS - 1 - digit))
        one = least + by
        two = one + by
        three = two + by
        ones = tl.zeros([BLOCK], tl.int32)
        twos = tl.zeros([BLOCK], tl.int32)
        threes = tl.zeros([BLOCK], tl.int32)
        for first in range(start, stop, BLOCK):
            there = first + e < stop
            x = tl.load(scores_ptr + first + e, mask=there, other=0.0).to(tl.int32, bitcast=True)
            x = tl.where(there, x ^ ((x >> 31) & 0x7FFFFFFF), -(2**31))
            ones += (x >= one).to(tl.int32)
            twos += (x >= two).to(tl.int32)
            threes += (x >= three).to(tl.int32)
        least = tl.where(tl.sum(ones, 0) >= count, one, least)
        least = tl.where(tl.sum(twos, 0) >= count, two, least)
        least = tl.where(tl.sum(threes, 0) >= count, three, least)
    border = (least ^ ((least >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    low = border
    high = border
    if TIE:
        slack = tl.minimum(tl.max(most, 0) * tie, _LARGEST)
        low = border - slack
        high = border + slack

    # Of scores with NaN that is what is above the others, which all tie; with too many of them they tie instead.
    many = nans >= count
    above = tl.zeros([BLOCK], tl.int32)
    tied = tl.zeros([BLOCK], tl.int32)
    for first in range(start, stop, BLOCK):
        x = tl.load(scores_ptr + first + e, mask=first + e < stop, other=float("-inf"))
        above += (x > high).to(tl.int32)
        if LAST:
            tied += ((x >= low) & (x <= high) & (first + e < stop)).to(tl.int32)
    taken = tl.where(nans > 0, tl.where(many, 0, nans), tl.sum(above, 0))
    missing = count - taken
    skipped = 0
    if LAST:
        skipped = tl.where(nans > 0, 0, tl.sum(tied, 0) - missing)

    at = 0
    met = 0
    for first in range(start, stop, BLOCK):
        there = first + e < stop
        x = tl.load(scores_ptr + first + e, mask=there, other=0.0)
        number = x == x
        larger = tl.where(nans > 0, ~number & ~many, x > high) & there
        equal = tl.where(nans > 0, number ^ many, (x >= low) & (x <= high)) & there
        rank = met + tl.cumsum(equal.to(tl.int32), 0) - 1
        kept = larger | (equal & (rank >= skipped) & (rank < skipped + missing))
        place = at + tl.cumsum(kept.to(tl.int32), 0) - 1
        tl.store(chosen_ptr + place, (first + e).to(tl.int64), mask=kept & (place < count))
        met += tl.sum(equal.to(tl.int32), 0)
        at += tl.sum(kept.to(tl.int32), 0)
