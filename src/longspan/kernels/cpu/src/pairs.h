/* Products of few query rows and stored keys, and sums of stored values, whose channels come as pairs of vectors. Included
   for each size of vector, as stored.h is. */

/* part [LANES] += q . k of `tile` rows and LANES / tile keys, over the whole pairs of channels from `d` on. Returns where
   they end. Eight sums run side by side, which hides their latency. */
INLINE int NAME(pair_products)(f8 *part, const char *const *key, const float *q, int d, int dk, const int tile,
                               const int kind) {
    const int lanes = sizeof(V) / sizeof(float), pair = 2 * lanes, width = LANES / tile;
    const int end = d + (dk - d) / pair * pair;
    if (d == end) return d;
    V sum[LANES], x, y;
    for (int c = 0; c < LANES; c++) sum[c] = (V){0};
    if (tile == 1) { /* key after key in memory order: eight at once would defeat the hardware's prefetch */
#pragma GCC unroll 8
        for (int c = 0; c < width; c++) {
            V odd = {0};
            for (int at = d; at < end; at += pair) {
                NAME(load_pair)(key[c] + at * bytes_of(kind), kind, &x, &y);
                sum[c] += x * NAME(load)(q + at, FP32), odd += y * NAME(load)(q + at + lanes, FP32);
            }
            sum[c] += odd;
        }
    } else {
        for (int at = d; at < end; at += pair) {
#pragma GCC unroll 8
            for (int c = 0; c < width; c++) {
                NAME(load_pair)(key[c] + at * bytes_of(kind), kind, &x, &y);
#pragma GCC unroll 8
                for (int r = 0; r < tile; r++) sum[c * tile + r] += x * NAME(load)(q + r * dk + at, FP32);
#pragma GCC unroll 8
                for (int r = 0; r < tile; r++) sum[c * tile + r] += y * NAME(load)(q + r * dk + at + lanes, FP32);
            }
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < LANES; c++) part[c] += NAME(folded)(sum[c]);
    return end;
}

/* sum += weights . values of `tile` rows: `pairs` pairs of vectors from channel `d` on, as many as give eight sums. */
INLINE void NAME(accumulate_pairs)(float *sum, const float *weights, const char *const *values, int n, int d, int dv,
                                   const int tile, const int pairs, const int kind) {
    const int lanes = sizeof(V) / sizeof(float), vectors = 2 * pairs;
    V part[LANES], x, y;
#pragma GCC unroll 8
    for (int p = 0; p < tile * vectors; p++)
        part[p] = NAME(load)(sum + p / vectors * dv + d + p % vectors * lanes, FP32);
    for (int j = 0; j < n; j++) {
        const char *value = values[j] + d * bytes_of(kind);
#pragma GCC unroll 8
        for (int c = 0; c < pairs; c++) {
            NAME(load_pair)(value + c * 2 * lanes * bytes_of(kind), kind, &x, &y);
#pragma GCC unroll 8
            for (int r = 0; r < tile; r++) {
                part[r * vectors + 2 * c] += x * weights[j * tile + r];
                part[r * vectors + 2 * c + 1] += y * weights[j * tile + r];
            }
        }
    }
#pragma GCC unroll 8
    for (int p = 0; p < tile * vectors; p++) NAME(store)(sum + p / vectors * dv + d + p % vectors * lanes, part[p]);
}

/* The same for the whole pairs of channels from `d` on, while the keys after `next` are fetched. Returns where they end. */
INLINE int NAME(accumulate_values)(float *sum, const float *weights, const char *const *values, int n, int d, int dk,
                                   int dv, const Run *run, int64_t next, const int tile, const int kind) {
    const int pair = 2 * sizeof(V) / sizeof(float), pairs = LANES / 2 / tile, wide = pairs * pair;
    for (; d + wide <= dv; d += wide) {
        int64_t at = next + BLOCK * d / dv, share = (BLOCK * wide + dv - 1) / dv;
        if (run) fetch(run->keys, run->key_step, run, at, at + share, dk * bytes_of(kind));
        NAME(accumulate_pairs)(sum, weights, values, n, d, dv, tile, pairs, kind);
    }
    for (; d + pair <= dv; d += pair) NAME(accumulate_pairs)(sum, weights, values, n, d, dv, tile, 1, kind);
    return d;
}
