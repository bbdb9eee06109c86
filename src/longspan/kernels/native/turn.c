/* The rotation of few tokens. */

#include "job.h"

int longspan_turn(const Turn *of, Share *share) {
    const int64_t size = bytes_of((int)of->kind);
    const Job job = {.dk = of->width, .kind = of->kind, .start = of->start, .pairs = of->pairs, .apart = of->apart};
    EACH(item, share)
        for (int64_t t = 0; t < of->rows; t++) {
            const char *from = of->x + (item * of->item_step + t * of->row_step) * size;
            char *to = of->to + (item * of->to_item + t * of->to_row) * size;
            turn_stored(to, from, &job, of->cos + t * of->pairs, of->sin + t * of->pairs);
        }
    return 1;
}
