/* Attention of many query rows to runs of stored keys. A vector's lanes are rows, so that keys and values are read in place,
   and the maxima and sums of a softmax stay within a lane. */

#ifndef LONGSPAN_TILE_H
#define LONGSPAN_TILE_H

#include <stdlib.h>

#include "lanes.h"
#include "products.h"

enum { STEP = 128, MOST = 192 }; /* keys of a step, rows of a tile */

/* Rows that see the same keys, in panels of `wide` vectors; each is [dk or dv or key, wide * LANES]. */
typedef struct {
    int wide, panels, dk, dv, kind;
    float softcap;
    float *q, *sum;         /* of all panels: rotated and scaled queries; weighted values */
    float *top, *total;     /* [panels, wide * LANES] */
    float *scores;          /* of one panel */
    float *rows;            /* [LANES, dk or dv] */
    float *keys, *values;   /* [STEP, dk], [STEP, dv], if they are not stored as fp32 */
    int64_t *low, *high;    /* [panels, wide * LANES]: which keys a row sees, before it sees a run */
    void *memory;
} Tile;

INLINE void shape(Tile *tile, int rows) { shape_of(rows, WIDEST, &tile->panels, &tile->wide); }

/* Memory for up to `rows` rows; false when there is none. */
static int make_tile(Tile *tile, int rows, int dk, int dv, int kind, float softcap) {
    *tile = (Tile){.dk = dk, .dv = dv, .kind = kind, .softcap = softcap};
    size_t lanes = (size_t)(rows + WIDEST * LANES - 1) / (WIDEST * LANES) * (WIDEST * LANES) + WIDEST * LANES;
    size_t numbers = lanes * (size_t)(dk + dv + 2) + (STEP + LANES) * (size_t)(WIDEST * LANES + dk + dv);
    char *at = tile->memory = malloc(numbers * sizeof(float) + 2 * lanes * sizeof(int64_t) + 64);
    if (!at) return 0;
    at += 64 - (uintptr_t)at % 64;
    tile->low = (int64_t *)at, tile->high = tile->low + lanes;
    tile->scores = (float *)(tile->high + lanes);
    tile->q = tile->scores + STEP * WIDEST * LANES;
    tile->sum = tile->q + lanes * (size_t)dk;
    tile->top = tile->sum + lanes * (size_t)dv, tile->total = tile->top + lanes;
    tile->keys = tile->total + lanes, tile->values = tile->keys + STEP * (size_t)dk;
    tile->rows = tile->values + STEP * (size_t)dv;
    return 1;
}

static void begin_tile(Tile *tile) {
    size_t lanes = (size_t)tile->panels * (size_t)tile->wide * LANES;
    memset(tile->sum, 0, sizeof(float) * lanes * (size_t)tile->dv);
    for (size_t r = 0; r < lanes; r++) tile->top[r] = -INFINITY, tile->total[r] = 0.0f;
}

/* to [many, row] = rescale [row] * to + a [depth, many]^T . b [depth, row]; a's
   rows are `step` bytes apart, or `rows`. */
INLINE void accumulate_values_in(float *to, const float *rescale, const char *a, int64_t step,
                                 const float *const *rows, int at,
                     const float *b, int depth, const int many, const int wide, const int spread) {
    f8 sum[LANES * 2];
#pragma GCC unroll 16
    for (int x = 0; x < many * wide; x++) sum[x] = load(to + x * LANES, FP32) * load(rescale + x % wide * LANES, FP32);
    for (int k = 0; k < depth; k++) {
        const float *value = spread ? rows[k] + at : (const float *)(a + k * step);
        f8 row[WIDE];
#pragma GCC unroll 4
        for (int c = 0; c < wide; c++) {
            row[c] = load(b + (k * wide + c) * LANES, FP32);
            KEEP(row[c]);
        }
#pragma GCC unroll 8
        for (int n = 0; n < many; n++) {
            f8 one = all(value[n]);
#pragma GCC unroll 4
            for (int c = 0; c < wide; c++) sum[n * wide + c] += one * row[c];
        }
    }
#pragma GCC unroll 16
    for (int x = 0; x < many * wide; x++) store(to + x * LANES, sum[x]);
}

/* Of numbers below an eighth a sum of three terms, within 2e-7 of it: 1 - e would have few digits of theirs. */
INLINE f8 tanh_of(f8 x) {
    f8 size = either((i8)(x < all(0.0f)), -x, x), e = exp2_of(-2.0f * LOG2_E * size);
    f8 t = (1.0f - e) / (1.0f + e), y = x * x, few = (y * (2.0f / 15) - 1.0f / 3) * y * x + x;
    return either((i8)(size < all(0.125f)), few, either((i8)(x < all(0.0f)), -t, t));
}

/* Scores [n, row] under a softcap, and -inf of keys that a row does not see. */
INLINE void bound_scores(float *scores, int n, float softcap, const int64_t *low, const int64_t *high, int64_t first,
                         const int wide) {
    const float cap = softcap * LOG2_E;
    for (int c = 0; c < wide; c++) {
        float *column = scores + c * LANES;
        if (cap > 0)
            for (int j = 0; j < n; j++)
                store(column + j * wide * LANES, cap * tanh_of(load(column + j * wide * LANES, FP32) * (1 / cap)));
        if (!low) continue;
        i8 from, to;
        for (int r = 0; r < LANES; r++) {
            int64_t a = low[c * LANES + r] - first, z = high[c * LANES + r] - first;
            from[r] = (int32_t)(a < 0 ? 0 : a > n ? n : a), to[r] = (int32_t)(z < 0 ? 0 : z > n ? n : z);
        }
        for (int j = 0; j < n; j++) {
            f8 s = load(column + j * wide * LANES, FP32);
            store(column + j * wide * LANES, either((i8)((from <= j) & (to > j)), s, all(-INFINITY)));
        }
    }
}

/* Of a vector of rows the scores [n], `step` numbers apart, become weights, `top` and `total` follow; `rescale` is the
   factor of all earlier weights. Two maxima and sums at once hide half of what each waits. */
#define ONLINE_SOFTMAX(name, f, i, load, store, larger, exp2_of)                                                       \
    INLINE void name(float *scores, int n, int step, float *top, float *total, float *rescale) {                       \
        f before = load(top, FP32), now = before, other = before;                                                      \
        int j = 0;                                                                                                     \
        for (; j + 1 < n; j += 2) {                                                                                    \
            now = larger(load(scores + j * step, FP32), now);                                                          \
            other = larger(load(scores + (j + 1) * step, FP32), other);                                                \
        }                                                                                                              \
        if (j < n) now = larger(load(scores + j * step, FP32), now);                                                   \
        now = larger(now, other);                                                                                      \
        f none = (f){0} - INFINITY, shift = (f)(~(i)(now == none) & (i)now), added = {0}, more = {0};                  \
        f factor = exp2_of(before - shift);                                                                            \
        for (j = 0; j + 1 < n; j += 2) {                                                                               \
            f weight = exp2_of(load(scores + j * step, FP32) - shift);                                                 \
            f next = exp2_of(load(scores + (j + 1) * step, FP32) - shift);                                             \
            added += weight, more += next;                                                                             \
            store(scores + j * step, weight), store(scores + (j + 1) * step, next);                                    \
        }                                                                                                              \
        if (j < n) {                                                                                                   \
            f weight = exp2_of(load(scores + j * step, FP32) - shift);                                                 \
            added += weight;                                                                                           \
            store(scores + j * step, weight);                                                                          \
        }                                                                                                              \
        store(top, now), store(total, load(total, FP32) * factor + (added + more)), store(rescale, factor);            \
    }
ONLINE_SOFTMAX(online_softmax_of_8, f8, i8, load, store, larger, exp2_of)

/* Functions of their own, as products are. */
#define ALONE(wide, many)                                                                                              \
    static __attribute__((noinline)) void accumulate_values_##wide(float *to, const float *rescale, const char *a,     \
                                                                   int64_t step, const float *b, int depth) {          \
        accumulate_values_in(to, rescale, a, step, 0, 0, b, depth, many, wide, 0);                                     \
    }                                                                                                                  \
    static __attribute__((noinline)) void accumulate_spread_##wide(float *to, const float *rescale,                    \
                                                                   const float *const *rows, int at, const float *b,   \
                                                                   int depth) {                                        \
        accumulate_values_in(to, rescale, 0, 0, rows, at, b, depth, many, wide, 1);                                    \
    }                                                                                                                  \
    static __attribute__((noinline)) void online_softmax_##wide(float *scores, int n, float softcap, float *top,       \
                                                                float *total, float *rescale, const int64_t *low,      \
                                                                const int64_t *high, int64_t first) {                  \
        bound_scores(scores, n, softcap, low, high, first, wide);                                                      \
        for (int c = 0; c < wide * LANES; c += LANES)                                                                  \
            online_softmax_of_8(scores + c, n, wide * LANES, top + c, total + c, rescale + c);                         \
    }
ALONE(1, 8)
ALONE(2, 4)
ALONE(3, 4)
#undef ALONE

#ifdef SIXTEEN
ONLINE_SOFTMAX(online_softmax_of_16, f16, i16, load16, store16, larger16, exp2_of16)

/* The same for LANES channels of panels of vectors of sixteen; `rows` are the values. */
#define ALONE_16(name, wide)                                                                                           \
    static __attribute__((noinline)) void accumulate_##name(float *to, const float *rescale, const float *const *rows, \
                                                            int at, const float *b, int depth) {                       \
        f16 sum[LANES * wide];                                                                                         \
        for (int x = 0; x < LANES * wide; x++)                                                                         \
            sum[x] = load16(to + x * 2 * LANES, FP32) * load16(rescale + x % wide * 2 * LANES, FP32);                  \
        products_16(sum, rows, at, b, depth, wide, 1);                                                                 \
        for (int x = 0; x < LANES * wide; x++) store16(to + x * 2 * LANES, sum[x]);                                    \
    }                                                                                                                  \
    static __attribute__((noinline)) void online_softmax_##name(float *scores, int n, float softcap, float *top,       \
                                                                float *total, float *rescale, const int64_t *low,      \
                                                                const int64_t *high, int64_t first) {                  \
        bound_scores(scores, n, softcap, low, high, first, 2 * wide);                                                  \
        for (int c = 0; c < wide * 2 * LANES; c += 2 * LANES)                                                          \
            online_softmax_of_16(scores + c, n, wide * 2 * LANES, top + c, total + c, rescale + c);                    \
    }                                                                                                                  \
    static void attend_keys_##name(Tile *tile, const float *const *keys, const float *const *values, int n,            \
                                   const int64_t *low, const int64_t *high, int64_t first) {                           \
        const int dk = tile->dk, dv = tile->dv, lanes = 2 * wide * LANES;                                              \
        float rescale[2 * wide * LANES];                                                                               \
        for (int p = 0; p < tile->panels; p++) {                                                                       \
            float *sum = tile->sum + p * dv * lanes, *scores = tile->scores;                                           \
            for (int j = 0; j < n; j += LANES)                                                                         \
                scores_##name(scores + j * lanes, keys + j, tile->q + p * dk * lanes, dk);                             \
            online_softmax_##name(scores, n, tile->softcap, tile->top + p * lanes, tile->total + p * lanes, rescale,   \
                                  low ? low + p * lanes : 0, high ? high + p * lanes : 0, first);                      \
            for (int d = 0; d < dv; d += LANES)                                                                        \
                accumulate_##name(sum + d * lanes, rescale, values, d, scores, n);                                     \
        }                                                                                                              \
    }
ALONE_16(4, 2)
ALONE_16(6, 3)
#undef ALONE_16
#endif

/* The keys of a step, of which the panel's rows see those between `low` and `high` if these are given. */
#define ATTEND_KEYS(wide, many)                                                                                        \
    static void attend_keys_##wide(Tile *tile, const float *const *keys, const float *const *values,                   \
                                   const char *packed, int64_t step, int n, const int64_t *low,                        \
                                   const int64_t *high, int64_t first) {                                               \
        const int dk = tile->dk, dv = tile->dv, lanes = wide * LANES;                                                  \
        float rescale[wide * LANES];                                                                                   \
        for (int p = 0; p < tile->panels; p++) {                                                                       \
            float *sum = tile->sum + p * dv * lanes, *scores = tile->scores;                                           \
            for (int j = 0; j < n; j += many)                                                                          \
                scores_##wide(scores + j * lanes, keys + j, tile->q + p * dk * lanes, dk);                             \
            online_softmax_##wide(scores, n, tile->softcap, tile->top + p * lanes, tile->total + p * lanes, rescale,   \
                          low ? low + p * lanes : 0, high ? high + p * lanes : 0, first);                              \
            for (int d = 0; d < dv; d += many)                                                                         \
                if (packed) accumulate_values_##wide(sum + d * lanes, rescale, packed + d * 4, step, scores, n);       \
                else accumulate_spread_##wide(sum + d * lanes, rescale, values, d, scores, n);                         \
        }                                                                                                              \
    }
ATTEND_KEYS(1, 8)
ATTEND_KEYS(2, 4)
ATTEND_KEYS(3, 4)
#undef ATTEND_KEYS

/* Let all rows see the keys `low <= j < high` of a run, each row its own, or all of it if `low` is null. */
static void attend_keys(Tile *tile, const Run *run, const int64_t *low, const int64_t *high) {
    const float *keys[STEP + LANES], *values[STEP + LANES];
    const int kind = tile->kind, dk = tile->dk, dv = tile->dv, lanes = tile->panels * tile->wide * LANES;
    int64_t from = 0, to = run->count, all_from = 0, all_to = run->count; /* what any row sees, and what all do */
    if (low) {
        from = run->count, to = 0, all_to = run->count;
        for (int r = 0; r < lanes; r++) {
            if (low[r] < from) from = low[r];
            if (high[r] > to) to = high[r];
            if (low[r] > all_from) all_from = low[r];
            if (high[r] < all_to) all_to = high[r];
        }
    }
    for (int64_t first = from; first < to; first += STEP) {
        int n = to - first < STEP ? (int)(to - first) : STEP;
        for (int j = 0; j < n; j++) {
            int64_t at = token_at(run, first + j);
            const char *key = run->keys + at * run->key_step, *value = run->values + at * run->value_step;
            if (kind == FP32) {
                keys[j] = (const float *)key, values[j] = (const float *)value;
                continue;
            }
            float *wide_key = tile->keys + j * dk, *wide_value = tile->values + j * dv;
            for (int d = 0; d < dk; d += LANES)
                store(wide_key + d, kind == BF16 ? load(key + d * 2, BF16) : load(key + d * 2, FP16));
            for (int d = 0; d < dv; d += LANES)
                store(wide_value + d, kind == BF16 ? load(value + d * 2, BF16) : load(value + d * 2, FP16));
            keys[j] = wide_key, values[j] = wide_value;
        }
        for (int j = n; j < n + LANES; j++) keys[j] = keys[n - 1];
        int64_t step = kind == FP32 ? run->value_step : dv * 4;
        const char *packed = kind == FP32 && run->tokens ? 0 : (const char *)values[0];
        int whole = all_from <= first && first + n <= all_to;
        const int64_t *own_low = whole ? 0 : low, *own_high = whole ? 0 : high;
#ifdef SIXTEEN
        if (tile->wide == 6) attend_keys_6(tile, keys, values, n, own_low, own_high, first);
        else if (tile->wide == 4) attend_keys_4(tile, keys, values, n, own_low, own_high, first);
        else
#endif
        if (tile->wide == 3) attend_keys_3(tile, keys, values, packed, step, n, own_low, own_high, first);
        else if (tile->wide == 2) attend_keys_2(tile, keys, values, packed, step, n, own_low, own_high, first);
        else attend_keys_1(tile, keys, values, packed, step, n, own_low, own_high, first);
    }
}

#endif
