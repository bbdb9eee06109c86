/* Attention of few queries, for the Python side: queries are turned here, and keys and values read where they lie.

   An item of the work is a row of the batch and what chooses in it (a key head, or a query head where those choose by
   themselves). Steps are in numbers, not bytes, unless they say so. */

#include <stdlib.h>

#include "job.h"
#include "softmax.h"

/* Room for one item's rows; false when there is no memory. */
static int make(Softmax *rows, const Job *job) {
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

/* A part that is there is one key: its log-sum-exp the score, its output the value. */
static void begin(Softmax *rows, const Job *job, int64_t b, int64_t s, int64_t t) {
    int64_t padded = (int64_t)rows->tiles * rows->tile, group = job->heads / job->sharing;
    memset(rows->sum, 0, sizeof(float) * (size_t)(padded * rows->dv));
    for (int64_t r = 0; r < padded; r++) {
        rows->top[r] = -INFINITY, rows->total[r] = 0.0f;
        if (!job->more || r >= group) continue;
        float score = *lse_of(job, b, s * group + r, t);
        if (score == -INFINITY) continue;
        rows->top[r] = score * LOG2_E, rows->total[r] = 1.0f;
        const char *from = out_of(job, b, s * group + r, t);
        for (int64_t d = 0; d < rows->dv; d++)
            rows->sum[r * rows->dv + arranged(d, rows->dv, rows->kind)] = load_one(from, d, rows->kind);
    }
}

/* The group's queries of token t, turned to a position (not at all where there are no angles). */
static void turn(Softmax *rows, const Job *job, int64_t b, int64_t s, int64_t t, const float *cos, const float *sin) {
    int64_t group = job->heads / job->sharing;
    for (int64_t r = 0; r < group; r++) {
        turn_channels(rows->bare, job, query_of(job, b, s * group + r, t), job->scale * LOG2_E, cos, sin);
        for (int64_t d = 0; d < job->dk; d++)
            rows->q[r * job->dk + arranged(d, job->dk, (int)job->kind)] = rows->bare[d];
    }
}

static void finish(const Softmax *rows, const Job *job, int64_t b, int64_t s, int64_t t) {
    int64_t group = job->heads / job->sharing;
    for (int64_t r = 0; r < group; r++) {
        int64_t h = s * group + r;
        float total = rows->total[r], part = total != 0 ? 1.0f / total : 0.0f;
        const float *sum = rows->sum + r * rows->dv;
        char *to = out_of(job, b, h, t);
        for (int64_t d = 0; d < rows->dv; d++)
            store_one(to, d, sum[arranged(d, rows->dv, rows->kind)] * part, rows->kind);
        *lse_of(job, b, h, t) = total != 0 ? (rows->top[r] + log2f(total)) / LOG2_E : -INFINITY;
    }
}

int longspan_banded(const Banded *of, Share *share) {
    const Job *job = &of->job;
    const Table *tables = tables_of(of);
    Softmax rows;
    if (!make(&rows, job)) return 0;
    EACH(item, share) {
        int64_t b = item / job->sharing, s = item % job->sharing;
        for (int64_t t = 0; t < job->rows; t++) {
            begin(&rows, job, b, s, t);
            for (int64_t n = 0; n < of->bands; n++) {
                int64_t from = of->low[n * job->rows + t], to = of->high[n * job->rows + t];
                if (from >= to) continue;
                turn(&rows, job, b, s, t, tables[n].cos + t * job->pairs, tables[n].sin + t * job->pairs);
                Run run = part(stored(job, of->keys + n, b, s), from, to);
                attend(&rows, &run);
            }
            finish(&rows, job, b, s, t);
        }
    }
    free(rows.q);
    return 1;
}

int longspan_units(const Units *of, Share *share) {
    const Job *job = &of->job;
    const Table *table = &of->table;
    const int64_t count = of->count, size = of->size;
    Softmax rows;
    if (!make(&rows, job)) return 0;
    EACH(item, share) {
        int64_t b = item / job->sharing, s = item % job->sharing;
        Run all_keys = stored(job, &of->keys, b, s);
        for (int64_t t = 0; t < job->rows; t++) {
            const int64_t *unit = units_of(of, b, s, t), *at = positions_of(of, b, s, t);
            begin(&rows, job, b, s, t);
            for (int64_t n = 0, same; n < count; n += same) {
                int64_t position = at[n];
                turn(&rows, job, b, s, t, table->cos + position * job->pairs, table->sin + position * job->pairs);
                if (size == 1) { /* single tokens that are seen alike are one run */
                    for (same = 1; n + same < count && at[n + same] == position;) same++;
                    Run run = all_keys;
                    run.tokens = unit + n, run.count = same;
                    attend(&rows, &run);
                } else {
                    same = 1;
                    Run run = part(all_keys, unit[n] * size, (unit[n] + 1) * size);
                    attend(&rows, &run);
                }
            }
            finish(&rows, job, b, s, t);
        }
    }
    free(rows.q);
    return 1;
}

int longspan_tokens(const Tokens *of, Share *share) {
    const Job *job = &of->job;
    Softmax rows;
    if (!make(&rows, job)) return 0;
    EACH(item, share) {
        int64_t b = item / job->sharing, s = item % job->sharing;
        for (int64_t t = 0; t < job->rows; t++) {
            int64_t from = 0;
            begin(&rows, job, b, s, t);
            for (int64_t n = 0; n < of->runs; n++) {
                int64_t to = end_of(of, b, s, n);
                if (from >= to) continue;
                turn(&rows, job, b, s, t, of->tables[n].cos + t * job->pairs,
                     of->tables[n].sin + t * job->pairs);
                Run run = stored(job, &of->keys, b, s);
                run.tokens = tokens_of(of, b, s) + from, run.count = to - from;
                attend(&rows, &run);
                from = to;
            }
            finish(&rows, job, b, s, t);
        }
    }
    free(rows.q);
    return 1;
}
