/* Top-k of many rows of scores. */

#include <stdlib.h>

#include "topk.h"
#include "worksteal.h"
#include "structs.h"

int longspan_topk(const TopK *of, WorkQueue *queue) {
    const int64_t n = of->n, count = of->count, from = of->first, *stops = of->stops;
    float *nearby = of->near ? malloc(sizeof(float) * (size_t)n) : 0;
    if (of->near && !nearby) return 0;
    EACH(row, queue) {
        const int64_t stop = stops && stops[row % of->tokens] < n ? stops[row % of->tokens] : n;
        choose_topk(of->scores + row * n + from, stop - from, count, from, (float)of->tie, of->prefer_last, of->near,
                  nearby, of->to + row * count);
    }
    free(nearby);
    return 1;
}
