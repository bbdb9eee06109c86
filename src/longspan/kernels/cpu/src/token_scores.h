/* Scores of keys by many queries (Wang et al., 2025, Eq 4): F(m) = max_c (f(m; c) - max_m' f(m'; c)). */

#ifndef LONGSPAN_TOKEN_SCORES_H
#define LONGSPAN_TOKEN_SCORES_H

#include <stdlib.h>

#include "lanes.h"
#include "structs.h"

SCORES(more_1, 1, 8, 1)
SCORES(more_2, 2, 4, 1)
SCORES(more_3, 3, 4, 1)
#ifdef SIXTEEN
SCORES_16(more_4, 2, 1)
SCORES_16(more_6, 3, 1)
#endif

enum { KEYS = 128 };   /* of a step: they stay in cache while all panels meet them */
enum { SPARE = 4096 }; /* keys by which room grows */

typedef struct {
    int panels, wide;
    int64_t room;         /* keys that a panel's scores have room for */
    float *q, *scores;    /* [part, panel, channel, row], [panel, key, row] */
    float *top;           /* [panel, row] */
    float *keys, *rows;   /* [KEYS, channel] if they are not stored as fp32; [LANES, channel] */
    f8 flaw;              /* NaN once a score or a difference of scores is NaN */
} ScoreTile;

static int make_score_tile(ScoreTile *tile, const TokenScores *job) {
    size_t lanes = (size_t)(job->tile + WIDEST * LANES - 1) / (WIDEST * LANES) * (WIDEST * LANES), width = (size_t)job->width;
    /* In steps: an allocation as large as the last one often gets the same pages. */
    tile->room = (job->count + SPARE - 1) / SPARE * SPARE + LANES;
    size_t q = (size_t)job->parts * lanes * width, scores = (size_t)tile->room * lanes;
    tile->q = malloc((q + scores + lanes + (KEYS + LANES) * width) * sizeof(float));
    if (!tile->q) return 0;
    tile->scores = tile->q + q, tile->top = tile->scores + scores;
    tile->keys = tile->top + lanes, tile->rows = tile->keys + KEYS * width;
    return 1;
}

/* Queries `first : first + count`, as lanes. */
static void load_queries(ScoreTile *tile, const TokenScores *job, int64_t chooser, int64_t first, int64_t count) {
    const int lanes = tile->wide * LANES, all_lanes = tile->panels * lanes;
    const int64_t width = job->width;
    float *panel = tile->q;
    for (int64_t c = 0; c < job->parts; c++)
        for (int at = 0; at < all_lanes; at += LANES) {
            const float *from = job->q + ((chooser * job->rows + first) * job->parts + c) * width;
            for (int64_t n = 0; n < LANES; n++) { /* the last query fills up a panel: it changes no maximum */
                int64_t r = at + n < count ? at + n : count - 1;
                memcpy(tile->rows + n * width, from + r * job->parts * width, sizeof(float) * (size_t)width);
            }
            into_lanes(panel, lanes, at % lanes, tile->rows, (int)width);
            if ((at + LANES) % lanes == 0) panel += lanes * width;
        }
}

/* Addresses of n keys in fp32; beyond them, as products read whole vectors, that of the last. */
static void load_keys(ScoreTile *tile, const TokenScores *job, const char *from, int n, const float **to) {
    const int64_t width = job->width, step = job->step[2] * bytes_of((int)job->kind);
    for (int j = 0; j < n; j++) {
        const char *key = from + j * step;
        float *wide_key = tile->keys + j * width;
        to[j] = job->kind == FP32 ? (const float *)key : wide_key;
        if (job->kind == BF16)
            for (int64_t d = 0; d < width; d += LANES) store(wide_key + d, load(key + 2 * d, BF16));
        if (job->kind == FP16)
            for (int64_t d = 0; d < width; d += LANES) store(wide_key + d, load(key + 2 * d, FP16));
    }
    for (int j = n; j < n + LANES; j++) to[j] = to[n - 1];
}

static void score(float *to, const float *const *keys, const float *q, int n, int width, int wide, int more) {
    const int many = wide == 2 || wide == 3 ? 4 : 8, lanes = wide * LANES;
    for (int j = 0; j < (n + LANES - 1) / LANES * LANES; j += many, to += many * lanes) {
#ifdef SIXTEEN
        if (wide == 6) (more ? more_6 : scores_6)(to, keys + j, q, width);
        else if (wide == 4) (more ? more_4 : scores_4)(to, keys + j, q, width);
        else
#endif
        if (wide == 3) (more ? more_3 : scores_3)(to, keys + j, q, width);
        else if (wide == 2) (more ? more_2 : scores_2)(to, keys + j, q, width);
        else (more ? more_1 : scores_1)(to, keys + j, q, width);
    }
}

/* f of a step's keys for all rows, the sum over a query's parts, and each row's largest. */
static void score_step(ScoreTile *tile, const TokenScores *job, int64_t b, int64_t s, int64_t first, int n) {
    const int lanes = tile->wide * LANES;
    const int64_t parts = job->parts, width = job->width, size = bytes_of((int)job->kind);
    const float *keys[KEYS + LANES], *q = tile->q;
    for (int64_t c = 0; c < parts; c++) {
        int64_t head = parts > 1 ? c : s * job->kv_heads / job->sharing;
        int64_t at = b * job->step[0] + head * job->step[1] + first * job->step[2];
        load_keys(tile, job, job->keys + at * size, n, keys);
        for (int p = 0; p < tile->panels; p++, q += width * lanes) {
            float *group_scores = tile->scores + (p * tile->room + first) * lanes, *top = tile->top + p * lanes;
            score(group_scores, keys, q, n, (int)width, tile->wide, c > 0);
            for (int r = 0; c == parts - 1 && r < lanes; r += LANES) {
                f8 largest = load(top + r, FP32);
                for (int j = 0; j < n; j++) largest = larger(load(group_scores + j * lanes + r, FP32), largest);
                store(top + r, largest);
            }
        }
    }
}

/* For each key the least distance, over rows, from the row's largest score. */
static void compare(ScoreTile *tile, int64_t count, float *to) {
    const int lanes = tile->wide * LANES;
    for (int64_t first = 0; first < count; first += LANES) {
        f8 near[LANES];
        for (int n = 0; n < LANES; n++) near[n] = all(-INFINITY);
        for (int p = 0; p < tile->panels; p++)
            for (int c = 0; c < lanes; c += LANES) {
                f8 top = load(tile->top + p * lanes + c, FP32);
                const float *scores = tile->scores + (p * tile->room + first) * lanes + c;
#pragma GCC unroll 8
                for (int n = 0; n < LANES; n++) {
                    f8 relative = load(scores + n * lanes, FP32) - top;
                    near[n] = larger(relative, near[n]), tile->flaw += relative;
                }
            }
        transpose(near);
        for (int n = 1; n < LANES; n++) near[0] = larger(near[0], near[n]);
        memcpy(to + first, near, sizeof(float) * (size_t)(count - first < LANES ? count - first : LANES));
    }
}

/* Scores of the first `keys` keys by `count` queries of a chooser, from `first` on. If a score is NaN, all are. */
static void score_queries(ScoreTile *tile, const TokenScores *job, int64_t chooser, int64_t first, int64_t count,
                          int64_t keys, float *to) {
    shape_of((int)count, WIDEST, &tile->panels, &tile->wide);
    const int lanes = tile->panels * tile->wide * LANES;
    for (int r = 0; r < lanes; r++) tile->top[r] = -INFINITY;
    tile->flaw = all(0.0f);
    load_queries(tile, job, chooser, first, count);
    for (int64_t at = 0; at < keys; at += KEYS)
        score_step(tile, job, chooser / job->sharing, chooser % job->sharing, at, keys - at < KEYS ? (int)(keys - at) : KEYS);
    compare(tile, keys, to);
    float flaw = 0.0f;
    for (int n = 0; n < LANES; n++) flaw += tile->flaw[n];
    if (flaw != flaw)
        for (int64_t m = 0; m < keys; m++) to[m] = flaw;
}

#endif
