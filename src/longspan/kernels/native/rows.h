/* A tile's rows: queries on their way in, turned, and outputs on their way out. */

#ifndef LONGSPAN_ROWS_H
#define LONGSPAN_ROWS_H

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

/* The tile's queries: row r is of token `first + tokens[r / group]`, turned by row `turns[r / group]` of the table. */
static void load_rows(Tile *tile, const Group *of, const int64_t *tokens, const int64_t *turns, int64_t count,
                      const Table *table) {
    const Job *job = of->job;
    const int64_t pairs = job->pairs, group = of->group, size = job->dk * bytes_of((int)job->kind);
    const int lanes = tile->panels * tile->wide * LANES, dk = tile->dk;
    for (int64_t first = 0, t = 0, h = 0; first < lanes; first += LANES) {
        int within;
        float *panel = lanes_at(tile, tile->q, dk, (int)first, &within);
        for (int n = 0; n < LANES; n++) {
            if (n == 0) /* tokens come in no order that a processor would guess */
                for (int64_t next = t + LANES / group; next < count && next <= t + 2 * LANES / group; next++)
                    for (int64_t g = 0; g < group && g < 2 * LANES; g++)
                        ask_for(query_of(job, of->b, of->s * group + g, of->first + tokens[next]), size);
            if (t < count)
                turn_channels(tile->rows + n * dk, job, query_of(job, of->b, of->s * group + h, of->first + tokens[t]),
                              job->scale * LOG2_E, table->cos + turns[t] * pairs, table->sin + turns[t] * pairs);
            else memset(tile->rows + n * dk, 0, sizeof(float) * (size_t)dk);
            if (++h == group) h = 0, t++;
        }
        into_lanes(panel, tile->wide * LANES, within, tile->rows, dk);
    }
}

#endif
