/* Products of query rows and runs of stored keys, which are read in place. */

#ifndef LONGSPAN_PRODUCTS_H
#define LONGSPAN_PRODUCTS_H

#include "vectors.h"

enum { BLOCK = 32 }; /* keys of a step: with their values they stay in a processor's first cache */

/* Stored tokens: of one head, the n-th of `tokens`, or the n-th after `base` if that is null. */
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

#define V f8
#define NAME(x) x
#include "pairs.h"
#undef V
#undef NAME
#ifdef SIXTEEN
#define V f16
#define NAME(x) x##16
#include "pairs.h"
#undef V
#undef NAME
#endif

/* q . k of `tile` rows and `n` keys, to [key, row]. */
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
        f8 part[LANES];
        for (int c = 0; c < LANES; c++) part[c] = all(0.0f);
        int d = 0;
#ifdef SIXTEEN
        d = pair_products16(part, key, q, d, dk, tile, kind);
#endif
        d = pair_products(part, key, q, d, dk, tile, kind);
        if (d < dk)
            for (int c = 0; c < width; c++)
                for (int r = 0; r < tile; r++)
                    part[c * tile + r] += load(key[c] + d * bytes_of(kind), kind) * load(q + r * dk + d, FP32);
        store(to + j * tile, sums(part));
    }
}

#endif
