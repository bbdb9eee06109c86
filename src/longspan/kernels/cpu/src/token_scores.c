/* What keys are worth to many queries, for the Python side. */

#include "worksteal.h"
#include "token_scores.h"

/* An item is a tile of `job->tile` queries of what chooses in a row of the batch. */
int longspan_token_scores(const TokenScores *job, WorkQueue *queue) {
    ScoreTile tile;
    if (!make_score_tile(&tile, job)) return 0;
    const int64_t tiles = (job->rows + job->tile - 1) / job->tile;
    EACH(item, queue) {
        int64_t first = item % tiles * job->tile;
        int64_t count = job->rows - first < job->tile ? job->rows - first : job->tile;
        score_queries(&tile, job, item / tiles, first, count, job->out + item * job->count);
    }
    free(tile.q);
    return 1;
}
