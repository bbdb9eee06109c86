/* Addresses of a job's tensors, and the rotation of channels. */

#ifndef LONGSPAN_JOB_H
#define LONGSPAN_JOB_H

#include "products.h"
#include "worksteal.h"
#include "structs.h"

INLINE const BandRange *band_ranges_of(const DecodeStep *of) { return (const BandRange *)(of->stored + of->rotations); }

INLINE const DecodeStep *step_at(const DecodeRows *of, int64_t n) {
    return (const DecodeStep *)((const char *)of + of->begins[n]);
}

/* The step whose item this is, which is counted within it from then on; `items` says how many a step has. */
INLINE const DecodeStep *step_of(const DecodeRows *of, int64_t *item, int64_t items(const DecodeStep *)) {
    int64_t n = 0;
    for (int64_t own; n < of->count - 1 && *item >= (own = items(step_at(of, n))); n++) *item -= own;
    return step_at(of, n);
}

INLINE const Table *tables_of(const Banded *of) { return (const Table *)(of->keys + of->bands); }

enum { PIECE = 1024 }; /* keys whose places are looked up in a table of pages at once */

/* Keys `from` and on, of at most PIECE and before `to`, of which `all` are those of a row; `places` has room for PIECE. */
static Run piece_of(const Banded *of, Run all, int64_t b, int64_t from, int64_t to, int64_t *places) {
    const int32_t *pages = of->pages + b * of->page_row;
    all.tokens = places, all.count = to - from < PIECE ? to - from : PIECE;
    for (int64_t n = 0, j = from, within = from % of->page_size; n < all.count; within = 0) {
        int64_t first = pages[j / of->page_size] * of->page_step;
        for (; within < of->page_size && n < all.count; within++, n++, j++) places[n] = first + within;
    }
    return all;
}

INLINE const int64_t *units_of(const Units *of, int64_t b, int64_t s, int64_t t) {
    return of->units + b * of->unit_step[0] + s * of->unit_step[1] + t * of->unit_step[2];
}

INLINE const int64_t *positions_of(const Units *of, int64_t b, int64_t s, int64_t t) {
    return of->positions + b * of->position_step[0] + s * of->position_step[1] + t * of->position_step[2];
}

INLINE const int64_t *tokens_of(const Tokens *of, int64_t b, int64_t s, int64_t chunk) {
    return of->tokens + b * of->token_step[0] + s * of->token_step[1] + chunk * of->token_step[2];
}

INLINE const int64_t *ends_of(const Tokens *of, int64_t b, int64_t s, int64_t chunk) {
    return of->ends + b * of->end_step[0] + s * of->end_step[1] + chunk * of->end_step[2];
}

INLINE Run stored(const Job *job, const Keys *keys, int64_t b, int64_t s) {
    int64_t h = s * job->kv_heads / job->sharing, size = bytes_of((int)job->kind);
    return (Run){
        .keys = keys->data + (b * keys->step[0] + h * keys->step[1]) * size,
        .values = job->v + (b * job->v_step[0] + h * job->v_step[1]) * size,
        .key_step = keys->step[2] * size,
        .value_step = job->v_step[2] * size,
    };
}

INLINE char *out_of(const Job *job, int64_t b, int64_t h, int64_t t) {
    return job->out + (b * job->out_step[0] + h * job->out_step[1] + t * job->out_step[2]) * bytes_of((int)job->kind);
}

INLINE float *lse_of(const Job *job, int64_t b, int64_t h, int64_t t) {
    return job->lse + b * job->lse_step[0] + h * job->lse_step[1] + t * job->lse_step[2];
}

INLINE Run part(Run run, int64_t low, int64_t high) {
    run.keys += low * run.key_step, run.values += low * run.value_step;
    run.count = high - low;
    return run;
}

/* Stored channels times a scale, rotated by one row of cos and sin. */
INLINE void rotate_channels(float *to, const Job *job, const char *from, float scale, const float *cos,
                          const float *sin) {
    const int64_t dk = job->dk, pair_stride = job->pair_stride;
    if (job->kind == FP32)
        for (int64_t d = 0; d < dk; d += LANES) store(to + d, load(from + d * 4, FP32) * scale);
    else if (job->kind == BF16)
        for (int64_t d = 0; d < dk; d += LANES) store(to + d, load(from + d * 2, BF16) * scale);
    else
        for (int64_t d = 0; d < dk; d += LANES) store(to + d, load(from + d * 2, FP16) * scale);
    float *x = to + job->start;
    int64_t p = 0, step = pair_stride == 1 ? 2 : 1;
    if (pair_stride >= LANES)
        for (; p + LANES <= job->pairs; p += LANES) {
            f8 a = load(x + p, FP32), b = load(x + p + pair_stride, FP32), c = load(cos + p, FP32), s = load(sin + p, FP32);
            store(x + p, a * c - b * s), store(x + p + pair_stride, b * c + a * s);
        }
    if (pair_stride == 1)
        for (; p + LANES <= job->pairs; p += LANES) {
            f8 c = load(cos + p, FP32), s = load(sin + p, FP32);
            f8 low = load(x + 2 * p, FP32), high = load(x + 2 * p + LANES, FP32);
            f8 one = low * SHUFFLE(c, c, 0, 0, 1, 1, 2, 2, 3, 3), two = high * SHUFFLE(c, c, 4, 4, 5, 5, 6, 6, 7, 7);
            one += SHUFFLE(low, low, 1, 0, 3, 2, 5, 4, 7, 6) * SHUFFLE(-s, s, 0, 8, 1, 9, 2, 10, 3, 11);
            two += SHUFFLE(high, high, 1, 0, 3, 2, 5, 4, 7, 6) * SHUFFLE(-s, s, 4, 12, 5, 13, 6, 14, 7, 15);
            store(x + 2 * p, one), store(x + 2 * p + LANES, two);
        }
    for (; p < job->pairs; p++) {
        float a = x[p * step], b = x[p * step + pair_stride];
        x[p * step] = a * cos[p] - b * sin[p], x[p * step + pair_stride] = b * cos[p] + a * sin[p];
    }
}

/* A stored query or key, rotated and stored again. */
INLINE void rotate_stored(char *to, const char *from, const Job *job, const float *cos, const float *sin) {
    const int64_t step = job->pair_stride == 1 ? 2 : 1;
    const int kind = (int)job->kind;
    memcpy(to, from, (size_t)(job->dk * bytes_of(kind)));
    for (int64_t p = 0; p < job->pairs; p++) {
        int64_t a = job->start + p * step, b = a + job->pair_stride;
        float u = load_one(from, a, kind), v = load_one(from, b, kind);
        store_one(to, a, u * cos[p] - v * sin[p], kind);
        store_one(to, b, v * cos[p] + u * sin[p], kind);
    }
}

INLINE const char *query_of(const Job *job, int64_t b, int64_t h, int64_t t) {
    return job->q + (b * job->q_step[0] + h * job->q_step[1] + t * job->q_step[2]) * bytes_of((int)job->kind);
}

/* Prefetch memory that is read soon. */
INLINE void prefetch(const void *from, int64_t size) {
    for (int64_t byte = 0; byte < size; byte += 64) __builtin_prefetch((const char *)from + byte);
}

#endif
