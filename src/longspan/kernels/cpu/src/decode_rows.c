/* Attention of few query rows: queries are rotated here, and keys and values are read in place.

   An item of the work is a row of the batch and a group of heads that share keys and a choice. */

#include "decode_rows.h"

int longspan_banded_decode(const Banded *of, WorkQueue *queue) {
    const Job *job = &of->job;
    const Table *tables = tables_of(of);
    Softmax rows;
    if (!init_rows(&rows, job)) return 0;
    EACH(item, queue) {
        int64_t b = item / job->sharing, s = item % job->sharing;
        for (int64_t t = 0; t < job->rows; t++) {
            const int64_t at = (of->plans > 1 ? b * job->rows : 0) + t, rotated = at * job->pairs;
            load_partial(&rows, job, b, s, t);
            for (int64_t n = 0; n < of->bands; n++) {
                const int64_t band = n * of->plans * job->rows, from = of->low[band + at], to = of->high[band + at];
                if (from >= to) continue;
                rotate_queries(&rows, job, b, s, t, tables[n].cos + rotated, tables[n].sin + rotated);
                const Run all = stored(job, of->keys + n, b, s);
                if (!of->pages) {
                    Run run = part(all, from, to);
                    attend(&rows, &run);
                    continue;
                }
                int64_t places[PIECE];
                for (int64_t first = from; first < to; first += PIECE) {
                    Run run = piece_of(of, all, b, first, to, places);
                    attend(&rows, &run);
                }
            }
            write_rows(&rows, job, b, s, t);
        }
    }
    free(rows.q);
    return 1;
}

int longspan_units_decode(const Units *of, WorkQueue *queue) {
    const Job *job = &of->job;
    const Table *table = &of->table;
    const int64_t count = of->count, size = of->size;
    Softmax rows;
    if (!init_rows(&rows, job)) return 0;
    EACH(item, queue) {
        int64_t b = item / job->sharing, s = item % job->sharing;
        Run all_keys = stored(job, &of->keys, b, s);
        for (int64_t t = 0; t < job->rows; t++) {
            const int64_t *unit = units_of(of, b, s, t), *at = positions_of(of, b, s, t);
            load_partial(&rows, job, b, s, t);
            for (int64_t n = 0, same; n < count; n += same) {
                int64_t position = at[n];
                rotate_queries(&rows, job, b, s, t, table->cos + position * job->pairs, table->sin + position * job->pairs);
                if (size == 1) { /* single tokens seen from one position are one run */
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
            write_rows(&rows, job, b, s, t);
        }
    }
    free(rows.q);
    return 1;
}

int longspan_tokens_decode(const Tokens *of, WorkQueue *queue) {
    const Job *job = &of->job;
    Softmax rows;
    if (!init_rows(&rows, job)) return 0;
    EACH(item, queue) {
        const int64_t b = item / (job->sharing * of->row_blocks), s = item / of->row_blocks % job->sharing;
        const int64_t *block = of->blocks + item % of->row_blocks * 3;
        const int64_t *ends = ends_of(of, b, s, block[2]), *tokens = tokens_of(of, b, s, block[2]);
        for (int64_t t = block[0]; t < block[1]; t++) {
            int64_t from = 0;
            load_partial(&rows, job, b, s, t);
            for (int64_t n = 0; n < of->runs; n++) {
                int64_t to = ends[n];
                if (from >= to) continue;
                rotate_queries(&rows, job, b, s, t, of->tables[n].cos + t * job->pairs,
                     of->tables[n].sin + t * job->pairs);
                Run run = stored(job, &of->keys, b, s);
                run.tokens = tokens + from, run.count = to - from;
                attend(&rows, &run);
                from = to;
            }
            write_rows(&rows, job, b, s, t);
        }
    }
    free(rows.q);
    return 1;
}
