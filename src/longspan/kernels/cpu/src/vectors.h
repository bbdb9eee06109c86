/* Eight fp32 numbers at a time, in the vector extensions that gcc and clang share: any CPU. Sixteen if a processor
   computes them whole, with AVX-512's intrinsics for what the extensions have no word for. */

#ifndef LONGSPAN_VECTORS_H
#define LONGSPAN_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8, PAIR = 16 };
enum { FP32, BF16, FP16 }; /* the kinds of stored numbers; the Python side knows them by these values */

typedef float f8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));
typedef uint32_t u8 __attribute__((vector_size(32)));
typedef uint16_t h8 __attribute__((vector_size(16)));

#define LOG2_E 1.44269504f /* scores are in base 2, which saves a product for each */

#define INLINE static inline __attribute__((always_inline))

/* gcc before 12 knows shuffles by a mask alone. */
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (i8){__VA_ARGS__})
#endif

INLINE int64_t bytes_of(int kind) { return kind == FP32 ? 4 : 2; }

INLINE f8 all(float x) { return (f8){x, x, x, x, x, x, x, x}; }

INLINE f8 either(i8 first, f8 a, f8 b) { return (f8)((first & (i8)a) | (~first & (i8)b)); }

INLINE f8 larger(f8 a, f8 b) {
#if defined(__AVX__)
    return __builtin_ia32_maxps256(a, b);
#else
    return either((i8)(a > b), a, b);
#endif
}

#ifdef __F16C__
#include <immintrin.h>
INLINE f8 of_fp16(h8 stored) { return (f8)_mm256_cvtph_ps((__m128i)stored); }
#endif
#define V f8
#define W u8
#define H h8
#define NAME(x) x
#include "stored.h"
#undef V
#undef W
#undef H
#undef NAME

/* Rounded to the nearest, ties to even. */
INLINE uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#ifdef __F16C__
INLINE uint16_t to_fp16(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
#else
INLINE uint16_t to_fp16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00;
    if (bits >= 0x477ff000) return sign | 0x7c00; /* 65,520 and more round to infinity */
    if (bits < 0x38800000) {                      /* subnormal: a sum leaves just the bits that it has */
        float small;
        memcpy(&small, &bits, sizeof small);
        small += 0.5f;
        memcpy(&bits, &small, sizeof bits);
        return sign | (uint16_t)(bits - 0x3f000000);
    }
    bits += 0xfff + (bits >> 13 & 1);
    return sign | (uint16_t)((bits - 0x38000000) >> 13);
}
#endif

INLINE float load_one(const void *from, int64_t at, const int kind) {
    if (kind == FP32) return ((const float *)from)[at];
    if (kind == BF16) {
        uint32_t wide = (uint32_t)((const uint16_t *)from)[at] << 16;
        float x;
        memcpy(&x, &wide, sizeof x);
        return x;
    }
#ifdef __F16C__
    return _cvtsh_ss(((const uint16_t *)from)[at]);
#else
    uint16_t stored[LANES] = {((const uint16_t *)from)[at]};
    return load(stored, kind)[0];
#endif
}

INLINE void store_one(void *to, int64_t at, float x, const int kind) {
    if (kind == FP32) ((float *)to)[at] = x;
    else ((uint16_t *)to)[at] = kind == BF16 ? to_bf16(x) : to_fp16(x);
}

/* 2^x for x <= 0, within two units of fp32's last place; 0 from -126 on, NaN for NaN. A sum with 1.5 * 2^23 leaves whole
   numbers, which its low bits count. The polynomial interpolates 2^r for |r| <= 1/2 at the zeros of a Chebyshev polynomial
   and is off by 3e-9 at most. A product with a power of two leaves what is no number none. The powers are computed as
   unsigned numbers, which may overflow: far below -126 they do. */
#define EXP2(name, f, i, u)                                                                                            \
    INLINE f name(f x) {                                                                                               \
        f shifted = x + 0x1.8p23f, r = x - (shifted - 0x1.8p23f);                                                      \
        f y = r * 0x1.444p-13f + 0x1.5f48cp-10f;                                                                       \
        y = y * r + 0x1.3b2a1cp-7f;                                                                                    \
        y = y * r + 0x1.c6aeccp-5f;                                                                                    \
        y = y * r + 0x1.ebfbep-3f;                                                                                     \
        y = y * r + 0x1.62e43p-1f;                                                                                     \
        y = y * r + 1.0f;                                                                                              \
        f power = (f)(((u)shifted << 23) + 0x3f800000), least = (f){0} - 126.0f;                                       \
        return (f)(~(i)(x < least) & (i)(y * power));                                                                  \
    }
EXP2(exp2_of, f8, i8, u8)

INLINE f8 folded(f8 x) { return x; }

/* Vectors of sixteen are for processors that compute them whole. Zen 4 computes them in two halves, so there they gain
   nothing, and panels of them take twice the L1 cache. A compiler that is older than a processor calls it by the last Zen
   it knows: VP2INTERSECT, which Zen 4 does not have, tells those after it. */
#if defined(__AVX512F__) && (defined(__AVX512VP2INTERSECT__) || !(defined(__znver3__) || defined(__znver4__)))
#define SIXTEEN
#include <immintrin.h>
typedef float f16 __attribute__((vector_size(64)));
typedef int32_t i16 __attribute__((vector_size(64)));
typedef uint32_t u16 __attribute__((vector_size(64)));
typedef uint16_t h16 __attribute__((vector_size(32)));

#ifdef __F16C__
INLINE f16 of_fp1616(h16 stored) { return (f16)_mm512_cvtph_ps((__m256i)stored); }
#endif
#define V f16
#define W u16
#define H h16
#define NAME(x) x##16
#include "stored.h"
#undef V
#undef W
#undef H
#undef NAME

INLINE f16 all16(float x) { return x - (f16){0}; } /* x + 0 would be computed: it makes -0 0 */

INLINE f16 larger16(f16 a, f16 b) { return _mm512_max_ps(a, b); }

EXP2(exp2_of16, f16, i16, u16)

/* The sums of the two halves. */
INLINE f8 folded16(f16 x) { return (f8)_mm512_castps512_ps256(x) + (f8)_mm512_extractf64x4_pd((__m512d)x, 1); }
#endif

/* Where channel d of `width` is in the order of `load_pair`: of pairs of the widest vectors as many as there are whole
   ones, then of pairs of eight; eight that are left at the end stay as they are. */
INLINE int64_t lane_order(int64_t d, int64_t width, const int kind) {
    if (kind != BF16) return d;
#ifdef SIXTEEN
    const int64_t pairs = width / (4 * LANES) * (4 * LANES);
    if (d < pairs) return d / (4 * LANES) * (4 * LANES) + d % (4 * LANES) / 2 + d % 2 * (2 * LANES);
#endif
    return d >= width / PAIR * PAIR ? d : d / PAIR * PAIR + d % PAIR / 2 + d % 2 * LANES;
}

/* The sum of each of eight vectors. */
INLINE f8 sums(const f8 *x) {
    f8 pairs[4], fours[2];
    for (int n = 0; n < 4; n++) {
        f8 a = x[2 * n], b = x[2 * n + 1];
        pairs[n] = SHUFFLE(a, b, 0, 8, 1, 9, 4, 12, 5, 13) + SHUFFLE(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int n = 0; n < 2; n++) {
        f8 a = pairs[2 * n], b = pairs[2 * n + 1];
        fours[n] = SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13) + SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
    return SHUFFLE(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11) +
           SHUFFLE(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

#endif
