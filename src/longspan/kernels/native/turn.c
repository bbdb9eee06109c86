/* The rotation of few tokens. */

#include "share.h"
#include "vectors.h"

/* Tokens [items, rows, width] of x turned into those of `to`, by cos and sin [rows, pairs]; channels `start + ...`
   turn, `apart` by one or by half of those that turn. Steps are of an item and a row, in numbers. */
typedef struct {
    const char *x;
    char *to;
    const float *cos, *sin;
    int64_t item_step, row_step, to_item, to_row, rows, width, start, pairs, apart, kind;
} Turn;

int longspan_turn(const Turn *of, Share *share) {
    const int64_t kind = of->kind, size = bytes_of((int)kind), step = of->apart == 1 ? 2 : 1;
    EACH(item, share)
        for (int64_t t = 0; t < of->rows; t++) {
            const char *from = of->x + (item * of->item_step + t * of->row_step) * size;
            char *own = of->to + (item * of->to_item + t * of->to_row) * size;
            const float *c = of->cos + t * of->pairs, *s = of->sin + t * of->pairs;
            memcpy(own, from, (size_t)(of->width * size));
            for (int64_t p = 0; p < of->pairs; p++) {
                int64_t a = of->start + p * step, b = a + of->apart;
                float u = load_one(from, a, (int)kind), v = load_one(from, b, (int)kind);
                store_one(own, a, u * c[p] - v * s[p], (int)kind);
                store_one(own, b, v * c[p] + u * s[p], (int)kind);
            }
        }
    return 1;
}
