/* Products of few rows with a matrix in codes of 4 or 8 bits, and such a matrix as numbers. */

#include "structs.h"
#include "vectors.h"
#include "worksteal.h"

/* Vectors of sixteen wherever the processor has them, even in two halves: unpacking takes fewer instructions. */
enum { ROWS = 4, HALF = 16, MOST_GROUPS = 2048 };
#ifdef __AVX2__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#ifdef __AVX512F__
enum { WIDE = 16 };
typedef float Wide __attribute__((vector_size(64)));

/* A nibble chooses one of sixteen numbers by its low four bits, whatever is above them. */
INLINE Wide number_of(__m512i nibble) {
    return (Wide)_mm512_permutexvar_ps(nibble, _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

INLINE void from_nibbles(const char *from, Wide *to) {
    __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
    to[0] = number_of(both), to[1] = number_of(_mm512_srli_epi32(both, 4));
}

INLINE Wide from_bytes(const char *from) {
    return (Wide)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}
#else
enum { WIDE = LANES };
typedef f8 Wide;

/* Bytes without a sign, and with one, as words. Compilers convert them one by one unless they are told how. */
#if defined(__AVX2__)
INLINE i8 of_unsigned(const char *from) { return (i8)_mm256_cvtepu8_epi32((__m128i){*(const int64_t *)from, 0}); }
INLINE i8 of_signed(const char *from) { return (i8)_mm256_cvtepi8_epi32((__m128i){*(const int64_t *)from, 0}); }
#elif defined(__aarch64__)
INLINE i8 of_signed_16(int16x8_t x) {
    int32x4_t halves[2] = {vmovl_s16(vget_low_s16(x)), vmovl_high_s16(x)};
    i8 words;
    memcpy(&words, halves, sizeof words);
    return words;
}
INLINE i8 of_unsigned(const char *from) { return of_signed_16((int16x8_t)vmovl_u8(vld1_u8((const uint8_t *)from))); }
INLINE i8 of_signed(const char *from) { return of_signed_16(vmovl_s8(vld1_s8((const int8_t *)from))); }
#else
#define BYTES_AS_WORDS(name, byte, half)                                                                               \
    INLINE i8 name(const char *from) {                                                                                 \
        typedef byte Bytes __attribute__((vector_size(LANES)));                                                        \
        typedef half Halves __attribute__((vector_size(2 * LANES)));                                                   \
        Bytes some;                                                                                                    \
        memcpy(&some, from, sizeof some);                                                                              \
        return __builtin_convertvector(__builtin_convertvector(some, Halves), i8);                                     \
    }
BYTES_AS_WORDS(of_unsigned, uint8_t, uint16_t)
BYTES_AS_WORDS(of_signed, int8_t, int16_t)
#endif

INLINE void from_nibbles(const char *from, Wide *to) {
    for (int n = 0; n < 2; n++) {
        const i8 both = of_unsigned(from + n * WIDE);
        to[n] = __builtin_convertvector(both & 15, Wide), to[n + 2] = __builtin_convertvector(both >> 4, Wide);
    }
}

INLINE Wide from_bytes(const char *from) { return __builtin_convertvector(of_signed(from), Wide); }
#endif

INLINE Wide load_wide(const float *from) {
    Wide x;
    memcpy(&x, from, sizeof x);
    return x;
}

/* One group of a row of the matrix: `to` gets its codes, `group` / WIDE vectors. */
INLINE void codes_of(const char *from, const int bits, const int group, Wide *to) {
    if (bits == 4) from_nibbles(from, to);
    else
        for (int n = 0; n < group / WIDE; n++) to[n] = from_bytes(from + n * WIDE);
}

INLINE void numbers_of_kind(const char *from, int64_t count, const int kind, float *to) {
    int64_t n = 0;
    for (; n + LANES <= count; n += LANES) store(to + n, load(from + n * bytes_of(kind), kind));
    for (; n < count; n++) to[n] = load_one(from, n, kind);
}

/* Stored numbers as fp32; a kind that the compiler knows costs no branch for each. */
INLINE void numbers_of(const char *from, int64_t count, int kind, float *to) {
    if (kind == FP32) numbers_of_kind(from, count, FP32, to);
    else if (kind == BF16) numbers_of_kind(from, count, BF16, to);
    else numbers_of_kind(from, count, FP16, to);
}

INLINE float total(Wide x) {
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)x);
#else
    float sum = 0;
    for (int n = 0; n < WIDE; n++) sum += x[n];
    return sum;
#endif
}

/* Room for the numbers of a row's groups, in whole vectors. */
INLINE int64_t room_of(int64_t groups) { return (groups + HALF - 1) / HALF * HALF; }

/* silu(x) = x / (1 + e^-x), from a power that is not above 1. */
INLINE f8 silu(f8 x) {
    const i8 negative = (i8)(x < all(0.0f));
    const f8 e = exp2_of(-LOG2_E * either(negative, -x, x));
    return x * either(negative, e, all(1.0f)) / (1.0f + e);
}

/* The inputs of a row in fp32. */
INLINE void inputs_of_row(const Packed *of, int64_t row, float *to) {
    const int64_t width = of->width, at = row * width;
    numbers_of(of->x + at * bytes_of((int)of->kind), width, (int)of->kind, to);
    if (of->times)
        for (int64_t n = 0; n < width; n += LANES) store(to + n, silu(load(to + n, FP32)) * load(of->times + at + n, FP32));
    if (of->norm) {
        Wide squares = {0};
        for (int64_t n = 0; n < width; n += WIDE) squares += load_wide(to + n) * load_wide(to + n);
        const float factor = 1 / sqrtf(total(squares) / (float)width + (float)of->epsilon);
        for (int64_t n = 0; n < width; n++) to[n] = of->norm[n] * (to[n] * factor);
    }
}

/* Inputs in fp32, and the sums of their groups; an item is a row. */
INLINE int inputs(const Packed *of, WorkQueue *queue) {
    const int64_t groups = of->width / of->group, room = room_of(groups);
    EACH(row, queue) {
        float *to = of->inputs + row * (of->width + room), *sums = to + of->width;
        inputs_of_row(of, row, to);
        for (int64_t g = 0; g < groups; g++) {
            Wide sum = {0};
            for (int64_t n = g * of->group; n < (g + 1) * of->group; n += WIDE) sum += load_wide(to + n);
            sums[g] = total(sum);
        }
        for (int64_t g = groups; g < room; g++) sums[g] = 0;
    }
    return 1;
}

/* One row of the matrix times `rows` rows of inputs. Every row's sum has the same order however many there are. */
INLINE void row_products(const Matrix *of, int64_t width, int64_t out, const float *const *inputs, const int rows,
                         const int bits, const int group, const float *scales, const float *minima, float *to) {
    const int64_t groups = width / group;
    const char *codes = of->codes + out * (width * bits / 8);
    Wide sums[ROWS] = {{0}};
    for (int64_t g = 0; g < groups; g++) {
        Wide code[32 / WIDE];
        codes_of(codes + g * (group * bits / 8), bits, group, code);
        for (int r = 0; r < rows; r++) {
            const float *x = inputs[r] + g * group;
            Wide part = code[0] * load_wide(x);
            for (int n = 1; n < group / WIDE; n++) part += code[n] * load_wide(x + n * WIDE);
            sums[r] += part * scales[g];
        }
    }
    for (int r = 0; r < rows; r++) {
        if (minima)
            for (int64_t g = 0; g < groups; g += WIDE)
                sums[r] += load_wide(minima + g) * load_wide(inputs[r] + width + g);
        to[r] = total(sums[r]);
    }
}

/* Rows `from` to `to` of a matrix times all rows of inputs. */
INLINE void products_by(const Packed *all, const Matrix *of, int64_t from, int64_t to, const int bits, const int group) {
    const int64_t width = all->width, groups = width / group, stride = width + room_of(width / all->group);
    const int kind = (int)of->kind, scale_kind = (int)of->scale_kind;
    float scales[MOST_GROUPS], minima[MOST_GROUPS], found[ROWS];
    for (int64_t g = groups; g < room_of(groups); g++) minima[g] = 0;
    for (int64_t out = from; out < to; out++) {
        const int64_t at = out * groups * bytes_of(scale_kind);
        numbers_of(of->scales + at, groups, scale_kind, scales);
        if (of->minima) numbers_of(of->minima + at, groups, scale_kind, minima);
        const float *own = of->minima ? minima : 0, bias = of->bias ? of->bias[out] : 0;
        for (int64_t row = 0; row < all->rows; row += ROWS) {
            const float *inputs[ROWS];
            const int count = all->rows - row < ROWS ? (int)(all->rows - row) : ROWS;
            for (int r = 0; r < count; r++) inputs[r] = all->inputs + (row + r) * stride;
            if (count == 1) row_products(of, width, out, inputs, 1, bits, group, scales, own, found);
            else if (count == 2) row_products(of, width, out, inputs, 2, bits, group, scales, own, found);
            else if (count == 3) row_products(of, width, out, inputs, 3, bits, group, scales, own, found);
            else row_products(of, width, out, inputs, 4, bits, group, scales, own, found);
            for (int r = 0; r < count; r++) {
                const int64_t place = (row + r) * of->outs + out;
                const float y = found[r] + bias + (of->residual ? of->residual[place] : 0);
                if (all->beyond && !(fabsf(y) <= (float)all->most)) __atomic_store_n(all->beyond, 1, __ATOMIC_RELAXED);
                store_one(of->out, place, y, kind);
            }
        }
    }
}

/* An item is some rows of one of the matrices, the first matrix' first. */
INLINE int products(const Packed *all, WorkQueue *queue) {
    for (int64_t n = 0; n < all->count; n++)
        if (all->width / all->matrices[n].group > MOST_GROUPS) return 0;
    EACH(item, queue) {
        const Matrix *of = all->matrices;
        int64_t part = item;
        while (part >= of->items) part -= of++->items;
        const int64_t from = part * all->each, to = from + all->each < of->outs ? from + all->each : of->outs;
        if (of->bits == 4) products_by(all, of, from, to, 4, 32);
        else if (of->group == 32) products_by(all, of, from, to, 8, 32);
        else products_by(all, of, from, to, 8, 16);
    }
    return 1;
}

static const Packed *after(const Packed *of, int count) {
    for (; count > 0; count--) of = (const Packed *)((const char *)of + of->next);
    return of;
}

/* The products of a call, each on inputs that those before it may have computed. */
#define PRODUCTS(n)                                                                                                    \
    int longspan_packed_inputs_##n(const Packed *of, WorkQueue *queue) { return inputs(after(of, n), queue); }         \
    int longspan_packed_products_##n(const Packed *of, WorkQueue *queue) { return products(after(of, n), queue); }
PRODUCTS(0)
PRODUCTS(1)
PRODUCTS(2)

/* Rows of the first matrix from `first` on as numbers of `kind`, [rows, width] to its `out`; an item is a row. */
int longspan_packed_numbers(const Packed *all, WorkQueue *queue) {
    const Matrix *of = all->matrices;
    const int group = (int)of->group, bits = (int)of->bits, kind = (int)of->kind, scale_kind = (int)of->scale_kind;
    const int64_t width = all->width, groups = width / group;
    EACH(row, queue) {
        const int64_t at = all->first + row;
        const char *codes = of->codes + at * (width * bits / 8);
        for (int64_t g = 0; g < groups; g++) {
            Wide code[32 / WIDE];
            codes_of(codes + g * (group * bits / 8), bits, group, code);
            const float scale = load_one(of->scales, at * groups + g, scale_kind);
            const float minimum = of->minima ? load_one(of->minima, at * groups + g, scale_kind) : 0;
            for (int n = 0; n < group / WIDE; n++) {
                Wide x = code[n] * scale + minimum;
                int64_t to = row * width + g * group + n * WIDE;
                if (kind == FP32) memcpy((float *)of->out + to, &x, sizeof x);
                else
                    for (int i = 0; i < WIDE; i++) store_one(of->out, to + i, x[i], kind);
            }
        }
    }
    return 1;
}
