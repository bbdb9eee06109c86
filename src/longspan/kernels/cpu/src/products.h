/* Products of query rows and runs of stored keys, which are read in place. */

#ifndef LONGSPAN_PRODUCTS_H
#define LONGSPAN_PRODUCTS_H

#include "vectors.h"

enum { BLOCK = 32 }; /* keys of a step: with their values they stay in a processor's first cache */

/* Stored tokens: of one head, the n-th of `tokens`, or the n-th after `base` where that is null. */
typedef struct {
    const char *keys, *values;
    int64_t key_step, value_step; /* bytes from a token to the next */
    const int64_t *tokens;
    int64_t count;
} Run;

INLINE int64_t token_at(const Run *run, int64_t n) { return run->tokens ? run->tokens[n] : n; }

/* Prefetch the next tokens while products are computed: no processor predicts which tokens those are. */
INLINE void fetch(const char *from, int64_t step, const Run *run, int64_t first, int64_t last, int64_t size) {
    if (last > run->count) last = run->count;
    for (int64_t n = first; n < last; n++) {
        const char *token = from + token_at(run, n) * step;
        for (int64_t byte = 0; byte < size; byte += 64) __builtin_prefetch(token + byte);
    }
}

/* q . k of `tile` rows and `n` keys, to [key, row]. Eight sums run side by side, which hides their latency. */
INLINE void products(const float *q, const Run *run, int64_t first, int n, int dk, int dv, int later,
                     float *to, const int tile, const int kind) {
    const int width = LANES / tile; /* keys at once */
    for (int j = 0; j < n; j += width) {
        const char *key[LANES];
        for (int c = 0; c < width; c++) {
            int64_t at = token_at(run, first + (j + c < n ? j + c : n - 1));
            key[c] = run->keys + at * run->key_step;
        }
        if (!later) fetch(run->values, run->value_step, run, first + j, first + j + width, dv * bytes_of(kind));
        f8 part[LANES], x, y;
        for (int c = 0; c < LANES; c++) part[c] = all(0.0f);
        int d = 0;
        if (tile == 1) { /* key after key in memory order: eight at once would defeat the hardware's prefetch */
#pragma GCC unroll 8
            for (int c = 0; c < width; c++) {
                f8 odd = all(0.0f);
                for (d = 0; d + PAIR <= dk; d += PAIR) {
                    load_pair(key[c] + d * bytes_of(kind), kind, &x, &y);
                    part[c] += x * load(q + d, FP32), odd += y * load(q + d + LANES, FP32);
                }
                part[c] += odd;
            }
        } else {
            for (; d + PAIR <= dk; d += PAIR) {
#pragma GCC unroll 8
                for (int c = 0; c < width; c++) {
                    load_pair(key[c] + d * bytes_of(kind), kind, &x, &y);
#pragma GCC unroll 8
                    for (int r = 0; r < tile; r++) part[c * tile + r] += x * load(q + r * dk + d, FP32);
#pragma GCC unroll 8
                    for (int r = 0; r < tile; r++) part[c * tile + r] += y * load(q + r * dk + d + LANES, FP32);
                }
            }
        }
        if (d < dk)
            for (int c = 0; c < width; c++)
                for (int r = 0; r < tile; r++)
                    part[c * tile + r] += load(key[c] + d * bytes_of(kind), kind) * load(q + r * dk + d, FP32);
        store8(to + j * tile, sums(part));
    }
}

#endif
