/* Panels of rows: a vector's lanes are rows, so that keys and values are read in place, one number for all lanes.

   Scores are [key, row] = K Q^T, and outputs [channel, row] = V^T P: two products of one shape. */

#ifndef LONGSPAN_LANES_H
#define LONGSPAN_LANES_H

#include "vectors.h"

enum { WIDE = 3 }; /* vectors of a panel's row, at most */

/* Rows take as few panels of up to `most` vectors as possible, and those are as narrow as possible. */
INLINE void shape_of(int rows, int most, int *panels, int *wide) {
    *panels = (rows + most * LANES - 1) / (most * LANES);
    *wide = (rows + *panels * LANES - 1) / (*panels * LANES);
    if (*wide > WIDE) *wide += *wide % 2; /* whole vectors of sixteen */
}

INLINE void transpose(f8 *x) {
    f8 a[8];
    for (int n = 0; n < 8; n += 2) {
        a[n] = SHUFFLE(x[n], x[n + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        a[n + 1] = SHUFFLE(x[n], x[n + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    f8 b[8];
    for (int n = 0; n < 8; n += 4)
        for (int c = 0; c < 2; c++) {
            b[n + c] = SHUFFLE(a[n + c], a[n + 2 + c], 0, 1, 8, 9, 4, 5, 12, 13);
            b[n + 2 + c] = SHUFFLE(a[n + c], a[n + 2 + c], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int n = 0; n < 4; n++) {
        x[n] = SHUFFLE(b[n], b[n + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        x[n + 4] = SHUFFLE(b[n], b[n + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* Rows [LANES, channels] become lanes `first : first + LANES` of a panel. */
INLINE void into_lanes(float *panel, int stride, int first, const float *rows, int channels) {
    for (int d = 0; d < channels; d += LANES) {
        f8 x[LANES];
#pragma GCC unroll 8
        for (int n = 0; n < LANES; n++) x[n] = load(rows + n * channels + d, FP32);
        transpose(x);
#pragma GCC unroll 8
        for (int n = 0; n < LANES; n++) store(panel + (d + n) * stride + first, x[n]);
    }
}

/* The other way round. */
INLINE void from_lanes(float *rows, const float *panel, int stride, int first, int channels) {
    for (int d = 0; d < channels; d += LANES) {
        f8 x[LANES];
#pragma GCC unroll 8
        for (int n = 0; n < LANES; n++) x[n] = load(panel + (d + n) * stride + first, FP32);
        transpose(x);
#pragma GCC unroll 8
        for (int n = 0; n < LANES; n++) store(rows + n * channels + d, x[n]);
    }
}

/* Keeps a vector in a register: compilers may read it from memory at every use, and there are too few ports for that. */
#if defined(__AVX__)
#define KEEP(x) __asm__("" : "+x"(x))
#else
#define KEEP(x) (void)(x)
#endif

/* to [many, row] = a [many, depth] . b [depth, row], with `a` read a number at a time; with `more` it is added to `to`. */
INLINE void scores_of(float *to, const float *const *a, const float *b, int depth, const int many, const int wide,
                      const int more) {
    f8 sum[LANES * 2];
#pragma GCC unroll 16
    for (int x = 0; x < many * wide; x++) sum[x] = more ? load(to + x * LANES, FP32) : all(0.0f);
    for (int d = 0; d < depth; d++) {
        f8 row[WIDE];
#pragma GCC unroll 4
        for (int c = 0; c < wide; c++) {
            row[c] = load(b + (d * wide + c) * LANES, FP32);
            KEEP(row[c]);
        }
#pragma GCC unroll 8
        for (int n = 0; n < many; n++) {
            f8 one = all(a[n][d]);
#pragma GCC unroll 4
            for (int c = 0; c < wide; c++) sum[n * wide + c] += one * row[c];
        }
    }
#pragma GCC unroll 16
    for (int x = 0; x < many * wide; x++) store(to + x * LANES, sum[x]);
}

/* Products are functions of their own: inlined, compilers run out of registers for their sums. */
#define SCORES(name, wide, many, more)                                                                                 \
    static __attribute__((noinline)) void name(float *to, const float *const *a, const float *b, int depth) {          \
        scores_of(to, a, b, depth, many, wide, more);                                                                  \
    }
SCORES(scores_1, 1, 8, 0)
SCORES(scores_2, 2, 4, 0)
SCORES(scores_3, 3, 4, 0)

/* Panels are twice as wide if vectors are. */
#ifdef SIXTEEN
enum { WIDEST = 2 * WIDE };

/* sum [LANES, row] += a [LANES, depth] . b [depth, row], a row of `wide` vectors of sixteen. `rows` are those of `a`;
   `across` it they are its columns, from `at` on. */
INLINE void products_16(f16 *sum, const float *const *rows, int at, const float *b, int depth, const int wide,
                        const int across) {
    for (int k = 0; k < depth; k++) {
        f16 row[WIDE];
#pragma GCC unroll 4
        for (int c = 0; c < wide; c++) {
            row[c] = load16(b + (k * wide + c) * 2 * LANES, FP32);
            __asm__("" : "+v"(row[c]));
        }
#pragma GCC unroll 8
        for (int n = 0; n < LANES; n++) {
            const f16 one = all16(across ? rows[k][at + n] : rows[n][k]);
#pragma GCC unroll 4
            for (int c = 0; c < wide; c++) sum[n * wide + c] += one * row[c];
        }
    }
}

#define SCORES_16(name, wide, more)                                                                                    \
    static __attribute__((noinline)) void name(float *to, const float *const *a, const float *b, int depth) {          \
        f16 sum[LANES * wide];                                                                                         \
        for (int x = 0; x < LANES * wide; x++)                                                                         \
            sum[x] = more ? load16(to + x * 2 * LANES, FP32) : all16(0.0f);                                            \
        products_16(sum, a, 0, b, depth, wide, 0);                                                                     \
        for (int x = 0; x < LANES * wide; x++) store16(to + x * 2 * LANES, sum[x]);                                    \
    }
SCORES_16(scores_4, 2, 0)
SCORES_16(scores_6, 3, 0)
#else
enum { WIDEST = WIDE };
#endif

#endif
