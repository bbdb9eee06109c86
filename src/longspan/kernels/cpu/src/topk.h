/* The places of the largest of many scores. */

#ifndef LONGSPAN_TOPK_H
#define LONGSPAN_TOPK_H

#include <float.h>
#include <stdlib.h>

#include "vectors.h"

enum { SORTED = 64, STRIDE = 32 }; /* places up to which the largest are kept sorted; scores compared at once */

typedef int64_t l4 __attribute__((vector_size(32)));

INLINE int any(i8 matches) {
    l4 x = (l4)matches;
    return (x[0] | x[1] | x[2] | x[3]) != 0;
}

INLINE int any_of(const float *scores, float than) {
    i8 matches = {0};
    for (int c = 0; c < STRIDE; c += LANES) matches |= (i8)(load(scores + c, FP32) >= all(than));
    return any(matches);
}

/* The `count`-th largest of n scores, n >= count: a score above the least of the largest so far is inserted. */
static float threshold_of_few(const float *scores, int64_t n, int64_t count) {
    float top[SORTED] = {-INFINITY}; /* ascending */
    int64_t taken = 0;
    for (int64_t j = 0; j < n;) {
        if (taken == count && j + STRIDE <= n && !any_of(scores + j, top[0])) {
            j += STRIDE;
            continue;
        }
        for (int64_t last = j + STRIDE < n ? j + STRIDE : n; j < last; j++) {
            float x = scores[j];
            int64_t at;
            if (taken < count) {
                for (at = taken++; at > 0 && top[at - 1] > x; at--) top[at] = top[at - 1];
            } else {
                if (!(x > top[0])) continue;
                for (at = 0; at + 1 < count && top[at + 1] < x; at++) top[at] = top[at + 1];
            }
            top[at] = x;
        }
    }
    return top[0];
}

/* An unsigned number for each score, in the same order. */
INLINE uint32_t ordered(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits ^ (bits >> 31 ? 0xffffffff : 0x80000000);
}

/* The same for any count, a radix select from the highest digit. */
static float threshold(const float *scores, int64_t n, int64_t count) {
    enum { MOST = 11 };
    const int bits = n < 4096 ? 6 : MOST; /* clearing many counters costs more than counting few scores */
    uint32_t prefix = 0, known = 0;
    for (int shift = 32 - bits; known != 0xffffffff; shift = shift > bits ? shift - bits : 0) {
        int64_t seen[1 << MOST];
        memset(seen, 0, sizeof seen[0] << bits);
        uint32_t digits = ~known & (0xffffffff << shift);
        for (int64_t j = 0; j < n; j++) {
            uint32_t x = ordered(scores[j]);
            if ((x & known) == prefix) seen[(x & digits) >> shift]++;
        }
        int64_t digit = digits >> shift;
        while (count > seen[digit]) count -= seen[digit--];
        prefix |= (uint32_t)digit << shift, known |= digits;
    }
    uint32_t bits_of = prefix ^ (prefix >> 31 ? 0x80000000 : 0xffffffff);
    float value;
    memcpy(&value, &bits_of, sizeof value);
    return value;
}

/* The same for few of many scores: a sample gives a lower bound, and only scores above it are selected from. */
static float threshold_among(const float *scores, int64_t n, int64_t count) {
    enum { SOME = 1024, LEAST = 8 * SOME };
    int64_t rank = count * SOME / n, taken = 0, room = 4 * count;
    rank += 4 * (int64_t)sqrtf((float)rank) + 8;
    float *top = n < LEAST || rank > SOME / 2 ? 0 : malloc(sizeof(float) * (size_t)room);
    if (!top) return threshold(scores, n, count);
    float some[SOME];
    for (int64_t j = 0; j < SOME; j++) some[j] = scores[j * n / SOME];
    const float least = threshold(some, SOME, rank);
    for (int64_t j = 0; j < n && taken >= 0;) {
        int64_t last = j + STRIDE < n ? j + STRIDE : n;
        if (last - j < STRIDE || any_of(scores + j, least)) {
            if (taken + STRIDE > room) taken = -1; /* the sample was misleading */
            else
                for (int64_t k = j; k < last; k++) top[taken] = scores[k], taken += scores[k] >= least;
        }
        j = last;
    }
    float value = taken < count ? threshold(scores, n, count) : threshold(top, taken, count);
    free(top);
    return value;
}

static float largest(const float *scores, int64_t n) {
    f8 most = all(0.0f);
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        f8 x = (f8)((i8)load(scores + j, FP32) & 0x7fffffff);
        most = either((i8)(x > most), x, most);
    }
    float value = 0.0f;
    for (int c = 0; c < LANES; c++) value = most[c] > value ? most[c] : value;
    for (; j < n; j++) value = fabsf(scores[j]) > value ? fabsf(scores[j]) : value;
    return value;
}

static int64_t reach(const float *scores, int64_t n, float least, const int equal) {
    i8 matches = {0};
    int64_t j = 0, count = 0;
    for (; j + LANES <= n; j += LANES) {
        f8 x = load(scores + j, FP32);
        matches -= equal ? (i8)(x >= all(least)) : (i8)(x > all(least));
    }
    for (int c = 0; c < LANES; c++) count += matches[c];
    for (; j < n; j++) count += equal ? scores[j] >= least : scores[j] > least;
    return count;
}

static int has_nan(const float *scores, int64_t n) {
    i8 matches = {0};
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        f8 x = load(scores + j, FP32);
        matches |= (i8)(x != x);
    }
    int some = any(matches);
    for (; j < n; j++) some |= scores[j] != scores[j];
    return some;
}

/* NaN is chosen first, so that it shows in the results; the first other places fill up the rest. */
static void choose_nan(const float *scores, int64_t n, int64_t count, int64_t from, int64_t *to) {
    int64_t strange = 0, at = 0;
    for (int64_t j = 0; j < n; j++) strange += scores[j] != scores[j];
    for (int64_t j = 0, others = count - strange; j < n && at < count; j++) {
        if (scores[j] != scores[j] ? strange-- > 0 : others-- > 0) to[at++] = j + from;
    }
}

/* Each of n scores becomes the largest within `near` places. */
static void max_nearby(const float *scores, int64_t n, int64_t near, float *to) {
    if (near > n) near = n;
    for (int64_t j = 0; j < n;) {
        if (j >= near && j + near + LANES <= n) {
            f8 top = load(scores + j - near, FP32);
            for (int64_t d = 1 - near; d <= near; d++) top = larger(load(scores + j + d, FP32), top);
            store(to + j, top);
            j += LANES;
            continue;
        }
        int64_t first = j > near ? j - near : 0, last = j + near < n ? j + near : n - 1;
        for (to[j] = scores[first]; first <= last; first++) to[j] = scores[first] > to[j] ? scores[first] : to[j];
        j++;
    }
}

/* The places of the `count` largest of n scores, ascending and counted from `from`. Scores within `tie` times the largest
   absolute score of the last of them tie for its place, and the first of those win, or the last. A score counts as the
   largest within `near` places; `nearby` has room for n scores. */
static void choose_topk(const float *scores, int64_t n, int64_t count, int64_t from, float tie, int64_t prefer_last,
                      int64_t near, float *nearby, int64_t *to) {
    if (has_nan(scores, n)) {
        choose_nan(scores, n, count, from, to);
        return;
    }
    if (near) {
        max_nearby(scores, n, near, nearby);
        scores = nearby;
    }
    const float least = count <= SORTED ? threshold_of_few(scores, n, count) : threshold_among(scores, n, count);
    const float slack = tie > 0 ? fminf(tie * largest(scores, n), FLT_MAX) : 0.0f;
    const float low = least - slack, high = least + slack;
    int64_t above = reach(scores, n, high, 0), equal = reach(scores, n, low, 1) - above, at = 0;
    int64_t taken = count - above, skipped = prefer_last ? equal - taken : 0, met = 0;
    for (int64_t j = 0; j < n && at < count;) {
        if (j + STRIDE <= n && !any_of(scores + j, low)) {
            j += STRIDE;
            continue;
        }
        for (int64_t end = j + STRIDE < n ? j + STRIDE : n; j < end && at < count; j++) {
            if (scores[j] > high) to[at++] = j + from;
            else if (scores[j] >= low && met++ >= skipped && met - skipped <= taken) to[at++] = j + from;
        }
    }
}

#endif
