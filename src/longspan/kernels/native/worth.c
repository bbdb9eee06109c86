/* What keys are worth to many queries, for the Python side. */

#include "share.h"
#include "worth.h"

/* An item is a tile of `job->tile` queries of what chooses in a row of the batch. */
int longspan_worth(const Worth *job, Share *share) {
    Scored tile;
    if (!make_scored(&tile, job)) return 0;
    const int64_t tiles = (job->rows + job->tile - 1) / job->tile;
    EACH(item, share) {
        int64_t first = item % tiles * job->tile;
        int64_t count = job->rows - first < job->tile ? job->rows - first : job->tile;
        find_worth(&tile, job, item / tiles, first, count, job->out + item * job->count);
    }
    free(tile.q);
    return 1;
}
