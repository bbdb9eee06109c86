/* The query rows of one token in a group of heads: rotated, attended to runs of stored keys, and written. */

#ifndef LONGSPAN_DECODE_ROWS_H
#define LONGSPAN_DECODE_ROWS_H

#include <stdlib.h>

#include "job.h"
#include "softmax.h"

/* Memory for the rows of one item; false when there is none. */
static int init_rows(Softmax *rows, const Job *job) {
    int64_t group = job->heads / job->sharing;
    rows->tile = group > 2 ? 4 : (int)group;
    rows->tiles = (int)((group + rows->tile - 1) / rows->tile);
    rows->dk = (int)job->dk, rows->dv = (int)job->dv, rows->kind = (int)job->kind, rows->softcap = job->softcap;
    int64_t padded = (int64_t)rows->tiles * rows->tile;
    rows->q = calloc((size_t)(padded * (job->dk + job->dv + 2) + job->dk), sizeof(float));
    if (!rows->q) return 0;
    rows->sum = rows->q + padded * job->dk;
    rows->top = rows->sum + padded * job->dv;
    rows->total = rows->top + padded;
    rows->bare = rows->total + padded;
    return 1;
}

/* A part of the softmax that is there already counts as one key: its log-sum-exp is the score, its output the value. */
static void load_partial(Softmax *rows, const Job *job, int64_t b, int64_t s, int64_t t) {
    int64_t padded = (int64_t)rows->tiles * rows->tile, group = job->heads / job->sharing;
    memset(rows->sum, 0, sizeof(float) * (size_t)(padded * rows->dv));
    for (int64_t r = 0; r < padded; r++) {
        rows->top[r] = -INFINITY, rows->total[r] = 0.0f;
        if (!job->accumulate || r >= group) continue;
        float score = *lse_of(job, b, s * group + r, t);
        if (score == -INFINITY) continue;
        rows->top[r] = score * LOG2_E, rows->total[r] = 1.0f;
        const char *from = out_of(job, b, s * group + r, t);
        for (int64_t d = 0; d < rows->dv; d++)
            rows->sum[r * rows->dv + lane_order(d, rows->dv, rows->kind)] = load_one(from, d, rows->kind);
    }
}

/* The group's queries of token t, rotated by one row of cos and sin. */
static void rotate_queries(Softmax *rows, const Job *job, int64_t b, int64_t s, int64_t t, const float *cos, const float *sin) {
    int64_t group = job->heads / job->sharing;
    for (int64_t r = 0; r < group; r++) {
        rotate_channels(rows->bare, job, query_of(job, b, s * group + r, t), job->scale * LOG2_E, cos, sin);
        for (int64_t d = 0; d < job->dk; d++)
            rows->q[r * job->dk + lane_order(d, job->dk, (int)job->kind)] = rows->bare[d];
    }
}

static void write_rows(const Softmax *rows, const Job *job, int64_t b, int64_t s, int64_t t) {
    int64_t group = job->heads / job->sharing;
    for (int64_t r = 0; r < group; r++) {
        int64_t h = s * group + r;
        float total = rows->total[r], part = total != 0 ? 1.0f / total : 0.0f;
        const float *sum = rows->sum + r * rows->dv;
        char *to = out_of(job, b, h, t);
        for (int64_t d = 0; d < rows->dv; d++)
            store_one(to, d, sum[lane_order(d, rows->dv, rows->kind)] * part, rows->kind);
        *lse_of(job, b, h, t) = total != 0 ? (rows->top[r] + log2f(total)) / LOG2_E : -INFINITY;
    }
}

#endif
