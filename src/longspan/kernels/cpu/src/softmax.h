/* Attention of a key head's few query rows to runs of stored keys: one online softmax over all of them. */

#ifndef LONGSPAN_SOFTMAX_H
#define LONGSPAN_SOFTMAX_H

#include "products.h"

/* Query rows that see the same keys, in tiles of `tile` (1, 2 or 4); rows that fill up the last tile are zero. */
typedef struct {
    int tile, tiles, dk, dv, kind;
    float softcap;
    float *q;           /* [tiles * tile, dk], rotated, scaled for scores in base 2, channels as `load_pair` has them */
    float *sum;         /* [tiles * tile, dv], weighted values, in that order too */
    float *top, *total; /* [tiles * tile] */
    float *bare;        /* [dk], a query before it is put in that order */
} Softmax;

/* sum += weights . values for the eight channels that may be left at the end. */
INLINE void accumulate_values_last(float *sum, const float *weights, const char *const *values, int n, int d, int dv,
                                   const int tile, const int kind) {
    for (int r = 0; r < tile; r++) {
        f8 part = load(sum + r * dv + d, FP32);
        for (int j = 0; j < n; j++) part += load(values[j] + d * bytes_of(kind), kind) * weights[j * tile + r];
        store(sum + r * dv + d, part);
    }
}

/* Scores [key, row] become weights; the tile's largest score, sum of weights and weighted values follow. */
INLINE void online_softmax(float *scores, int n, float softcap, float *top, float *total, float *sum, int dv,
                           const int tile) {
    int size = n * tile, whole = (size + LANES - 1) / LANES * LANES;
    if (softcap > 0) /* of a score in base e */
        for (int x = 0; x < size; x++) scores[x] = softcap * LOG2_E * tanhf(scores[x] / (softcap * LOG2_E));
    for (int x = size; x < whole; x++) scores[x] = -INFINITY;
    f8 most = all(-INFINITY), added = all(0.0f), shift;
    for (int x = 0; x < whole; x += LANES) {
        f8 s = load(scores + x, FP32);
        most = either((i8)(s > most), s, most);
    }
    for (int r = 0; r < tile; r++) {
        float highest = top[r];
        for (int x = r; x < LANES; x += tile) highest = most[x] > highest ? most[x] : highest;
        for (int x = r; x < LANES; x += tile) shift[x] = highest;
        if (highest > top[r]) {
            float rescale = total[r] > 0 ? exp2f(top[r] - highest) : 0.0f;
            total[r] *= rescale;
            for (int d = 0; d < dv; d += LANES) store(sum + r * dv + d, load(sum + r * dv + d, FP32) * rescale);
            top[r] = highest;
        }
    }
    shift = either((i8)(shift == all(-INFINITY)), all(0.0f), shift); /* -inf less itself is no number */
    for (int x = 0; x < whole; x += LANES) {
        f8 weight = exp2_of(load(scores + x, FP32) - shift);
        added += weight;
        store(scores + x, weight);
    }
    for (int r = 0; r < tile; r++)
        for (int x = r; x < LANES; x += tile) total[r] += added[x];
}

INLINE void attend_as(Softmax *all_rows, const Run *run, const int tile, const int kind) {
    const int dk = all_rows->dk, dv = all_rows->dv;
    float scores[(BLOCK + LANES) * 4];
    const char *values[BLOCK];
    for (int64_t first = 0; first < run->count; first += BLOCK) {
        int n = run->count - first < BLOCK ? (int)(run->count - first) : BLOCK;
        for (int j = 0; j < n; j++) values[j] = run->values + token_at(run, first + j) * run->value_step;
        for (int t = 0; t < all_rows->tiles; t++) {
            int row = t * tile, d = 0;
            float *sum = all_rows->sum + row * dv;
            products(all_rows->q + row * dk, run, first, n, dk, dv, t, scores, tile, kind);
            online_softmax(scores, n, all_rows->softcap, all_rows->top + row, all_rows->total + row, sum, dv, tile);
#ifdef SIXTEEN
            d = accumulate_values16(sum, scores, values, n, d, dk, dv, t ? 0 : run, first + n, tile, kind);
#endif
            d = accumulate_values(sum, scores, values, n, d, dk, dv, t ? 0 : run, first + n, tile, kind);
            if (d < dv) accumulate_values_last(sum, scores, values, n, d, dv, tile, kind);
        }
    }
}

/* Attend all rows to a run of keys. */
static void attend(Softmax *rows, const Run *run) {
#define CASE(tile_, kind_)                                                                                             \
    if (rows->tile == tile_ && rows->kind == kind_) attend_as(rows, run, tile_, kind_)
    CASE(4, BF16);
    CASE(4, FP16);
    CASE(4, FP32);
    CASE(2, BF16);
    CASE(2, FP16);
    CASE(2, FP32);
    CASE(1, BF16);
    CASE(1, FP16);
    CASE(1, FP32);
#undef CASE
}

#endif
