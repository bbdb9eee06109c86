/* Products of few queries and many keys. */

#include <stdlib.h>

#include "products.h"
#include "worksteal.h"
#include "structs.h"

int longspan_products(const Products *of, WorkQueue *queue) {
    const int kind = (int)of->kind, width = (int)of->width;
    const int64_t count = of->count, parts = (count + of->each - 1) / of->each, size = bytes_of(kind);
    float *query = malloc((size_t)width * sizeof(float)), sums[BLOCK + LANES];
    if (!query) return 0;
    EACH(item, queue) {
        const int64_t head = item / parts, from = item % parts * of->each;
        const int64_t to = from + of->each < count ? from + of->each : count;
        const int64_t at = head / of->heads * of->step[0] + head % of->heads * of->step[1];
        const Run run = {.keys = of->keys + at * size, .key_step = of->step[2] * size, .count = count};
        for (int64_t t = head * of->rows; t < (head + 1) * of->rows; t++) {
            for (int64_t d = 0; d < width; d++) query[lane_order(d, width, kind)] = of->q[t * width + d];
            for (int64_t first = from; first < to; first += BLOCK) {
                int n = to - first < BLOCK ? (int)(to - first) : BLOCK;
                if (kind == BF16) products(query, &run, first, n, width, 0, 1, sums, 1, BF16);
                else if (kind == FP16) products(query, &run, first, n, width, 0, 1, sums, 1, FP16);
                else products(query, &run, first, n, width, 0, 1, sums, 1, FP32);
                memcpy(of->out + t * count + first, sums, (size_t)n * sizeof(float));
            }
        }
    }
    free(query);
    return 1;
}
