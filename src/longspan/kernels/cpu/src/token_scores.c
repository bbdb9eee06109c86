/* Scores of keys by chunks of queries. */

#include "token_scores.h"
#include "worksteal.h"

/* The scores of the first `keys` keys by a chunk: its queries come a tile at a time, and the largest counts. */
static void score_chunk(ScoreTile *tile, const TokenScores *of, int64_t chooser, int64_t chunk, int64_t keys,
                        float *to, float *other) {
    for (int64_t first = of->edges[chunk], stop = of->edges[chunk + 1]; first < stop; first += of->tile) {
        const int64_t count = stop - first < of->tile ? stop - first : of->tile;
        const int again = first > of->edges[chunk];
        score_queries(tile, of, chooser, first, count, keys, again ? other : to);
        for (int64_t m = 0; again && m < keys; m++) /* NaN stays NaN */
            to[m] = other[m] > to[m] || other[m] != other[m] ? other[m] : to[m];
    }
}

/* An item is a chunk of what chooses in a row of the batch. The last chunks meet most keys: they come first. */
int longspan_token_scores(const TokenScores *of, WorkQueue *queue) {
    ScoreTile tile;
    float *other = malloc(sizeof(float) * (size_t)of->count);
    const int allocated = make_score_tile(&tile, of);
    if (allocated && other) EACH(item, queue) {
        const int64_t chooser = item / of->chunks, chunk = of->chunks - 1 - item % of->chunks;
        score_chunk(&tile, of, chooser, chunk, of->stops[chunk], of->out + (chooser * of->chunks + chunk) * of->count,
                    other);
    }
    if (allocated) free(tile.q);
    free(other);
    return allocated && other;
}
