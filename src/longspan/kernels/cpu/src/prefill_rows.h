/* The rows of a tile: rotated queries in, outputs out. */

#ifndef LONGSPAN_PREFILL_ROWS_H
#define LONGSPAN_PREFILL_ROWS_H

#include "job.h"
#include "tile.h"

/* Whose rows a tile has: the queries of a group's heads, token by token, counted from `first`. */
typedef struct {
    const Job *job;
    int64_t b, s, group, first;
} Group;

/* Lanes `8 n : 8 n + 8` of all panels: the panel, and which of its lanes is the first. */
INLINE float *lanes_at(const Tile *tile, float *panels, int channels, int first, int *within) {
    int lanes = tile->wide * LANES;
    *within = first % lanes;
    return panels + (int64_t)(first / lanes) * channels * lanes;
}

/* The tile's queries: row r is of token `first + tokens[r / group]`, rotated by row `at[r / group]` of the table. */
static void load_rows(Tile *tile, const Group *of, const int64_t *tokens, const int64_t *at, int64_t count,
                      const Table *table) {
    const Job *job = of->job;
    const int64_t pairs = job->pairs, group = of->group, size = job->dk * bytes_of((int)job->kind);
    const int lanes = tile->panels * tile->wide * LANES, dk = tile->dk;
    for (int64_t first = 0, t = 0, h = 0; first < lanes; first += LANES) {
        int within;
        float *panel = lanes_at(tile, tile->q, dk, (int)first, &within);
        for (int n = 0; n < LANES; n++) {
            if (n == 0) /* no processor predicts the order of the tokens */
                for (int64_t next = t + LANES / group; next < count && next <= t + 2 * LANES / group; next++)
                    for (int64_t g = 0; g < group && g < 2 * LANES; g++)
                        prefetch(query_of(job, of->b, of->s * group + g, of->first + tokens[next]), size);
            if (t < count)
                rotate_channels(tile->rows + n * dk, job, query_of(job, of->b, of->s * group + h, of->first + tokens[t]),
                              job->scale * LOG2_E, table->cos + at[t] * pairs, table->sin + at[t] * pairs);
            else memset(tile->rows + n * dk, 0, sizeof(float) * (size_t)dk);
            if (++h == group) h = 0, t++;
        }
        into_lanes(panel, tile->wide * LANES, within, tile->rows, dk);
    }
}

INLINE void write_row(const Job *job, int64_t b, int64_t h, int64_t t, const float *row, float top, float total) {
    const int kind = (int)job->kind;
    char *to = out_of(job, b, h, t);
    float part = total != 0 ? 1.0f / total : 0.0f;
    if (kind == FP32)
        for (int64_t d = 0; d < job->dv; d += LANES) store((float *)to + d, load(row + d, FP32) * part);
    else
        for (int64_t d = 0; d < job->dv; d++) store_one(to, d, row[d] * part, kind);
    *lse_of(job, b, h, t) = total != 0 ? (top + log2f(total)) / LOG2_E : -INFINITY;
}

/* What a row begins with: a part that is there is one key, its log-sum-exp the score and its output the value. */
INLINE void read_row(const Job *job, int64_t b, int64_t h, int64_t t, float *row, float *top, float *total) {
    const float score = job->accumulate ? *lse_of(job, b, h, t) : -INFINITY;
    const int kind = (int)job->kind, some = score != -INFINITY;
    const char *from = out_of(job, b, h, t);
    *top = score * LOG2_E, *total = some ? 1.0f : 0.0f;
    for (int64_t d = 0; d < job->dv; d += LANES)
        store(row + d, some ? load(from + d * bytes_of(kind), kind) : all(0.0f));
}

/* The tile's rows, which are of `count` tokens in order, begin. */
static void begin_rows(Tile *tile, const Group *of, int64_t count) {
    begin_tile(tile);
    if (!of->job->accumulate) return;
    const int dv = tile->dv;
    for (int64_t at = 0; at < count * of->group; at += LANES) {
        int within;
        float *panel = lanes_at(tile, tile->sum, dv, (int)at, &within);
        memset(tile->rows, 0, sizeof(float) * (size_t)(LANES * dv));
        for (int64_t n = 0; n < LANES && at + n < count * of->group; n++)
            read_row(of->job, of->b, of->s * of->group + (at + n) % of->group, of->first + (at + n) / of->group,
                     tile->rows + n * dv, tile->top + at + n, tile->total + at + n);
        into_lanes(panel, tile->wide * LANES, within, tile->rows, dv);
    }
}

/* The same rows to where they belong. */
static void write_rows(const Tile *tile, const Group *of, int64_t count) {
    float *rows = tile->rows;
    const int dv = tile->dv;
    for (int64_t at = 0; at < count * of->group; at += LANES) {
        int within;
        const float *panel = lanes_at(tile, tile->sum, dv, (int)at, &within);
        from_lanes(rows, panel, tile->wide * LANES, within, dv);
        for (int64_t n = 0; n < LANES && at + n < count * of->group; n++)
            write_row(of->job, of->b, of->s * of->group + (at + n) % of->group, of->first + (at + n) / of->group,
                      rows + n * dv, tile->top[at + n], tile->total[at + n]);
    }
}

#endif
