/* Attention of many query rows in tiles; keys and values are read in place.

   Items are not equally long: those known to be long come first. */

#include "prefill_rows.h"

/* A tile's rows added to what they have seen before: row `who[r / group]` of `sum` [tokens, group, dv], and so on. */
static void add_rows(const Tile *tile, int64_t group, const int64_t *who, int64_t count, float *sum, float *top,
                     float *total) {
    float *rows = tile->rows;
    const int dv = tile->dv;
    for (int64_t at = 0; at < count * group; at += LANES) {
        int within;
        const float *panel = lanes_at(tile, tile->sum, dv, (int)at, &within);
        from_lanes(rows, panel, tile->wide * LANES, within, dv);
        for (int64_t n = at + LANES; n < at + 2 * LANES && n < count * group; n++)
            prefetch(sum + (who[n / group] * group + n % group) * dv, 4 * dv);
        f8 theirs = load(tile->top + at, FP32), ours;
        for (int64_t n = 0; n < LANES; n++)
            ours[n] = at + n < count * group ? top[who[(at + n) / group] * group + (at + n) % group] : -INFINITY;
        f8 most = larger(ours, theirs), shift = either((i8)(most == all(-INFINITY)), all(0.0f), most);
        f8 keep = exp2_of(ours - shift), weight = exp2_of(theirs - shift);
        for (int64_t n = 0; n < LANES && at + n < count * group; n++) {
            int64_t r = who[(at + n) / group] * group + (at + n) % group;
            float *to = sum + r * dv;
            for (int d = 0; d < dv; d += LANES)
                store(to + d, load(to + d, FP32) * keep[n] + load(rows + n * dv + d, FP32) * weight[n]);
            top[r] = most[n], total[r] = total[r] * keep[n] + tile->total[at + n] * weight[n];
        }
    }
}

INLINE int64_t within(int64_t x, int64_t count) { return x < 0 ? 0 : x > count ? count : x; }

/* Which of the run's keys `from : to` each lane sees; lanes of no row see all, as the longest row may. */
static void limit(Tile *tile, const int64_t *low, const int64_t *high, int64_t count, int64_t group, int64_t from,
                  int64_t to) {
    const int64_t lanes = (int64_t)tile->panels * tile->wide * LANES;
    for (int64_t r = 0; r < lanes; r++) {
        int64_t t = r / group, some = t < count && low[t] < high[t];
        tile->low[r] = some ? within(low[t] - from, to - from) : 0;
        tile->high[r] = some ? within(high[t] - from, to - from) : t < count ? 0 : to - from;
    }
}

int longspan_banded_prefill(const Banded *args, WorkQueue *queue) {
    Tile tile;
    const Job *job = &args->job;
    const Table *tables = tables_of(args);
    const int64_t tokens = args->tokens;
    int64_t group = job->heads / job->sharing, parts = (job->rows + tokens - 1) / tokens;
    int64_t *indices = malloc(2 * sizeof(int64_t) * (size_t)tokens), *at = indices + tokens;
    int allocated = make_tile(&tile, (int)(tokens * group), (int)job->dk, (int)job->dv, (int)job->kind, job->softcap);
    if (allocated && indices) EACH(item, queue) {
        int64_t b = item / (job->sharing * parts), s = item / parts % job->sharing;
        int64_t first = (parts - 1 - item % parts) * tokens; /* the last see most: they come first */
        int64_t count = job->rows - first < tokens ? job->rows - first : tokens;
        Group of = {job, b, s, group, first};
        shape(&tile, (int)(count * group));
        begin_rows(&tile, &of, count);
        const int64_t seen_at = (args->plans > 1 ? b * job->rows : 0) + first;
        for (int64_t t = 0; t < count; t++) indices[t] = t, at[t] = seen_at + t;
        for (int64_t n = 0; n < args->bands; n++) {
            const int64_t band = n * args->plans * job->rows + seen_at;
            const int64_t *own_low = args->low + band, *own_high = args->high + band;
            int64_t from = INT64_MAX, to = 0;
            for (int64_t t = 0; t < count; t++)
                if (own_low[t] < own_high[t]) {
                    from = own_low[t] < from ? own_low[t] : from;
                    to = own_high[t] > to ? own_high[t] : to;
                }
            if (from >= to) continue;
            load_rows(&tile, &of, indices, at, count, tables + n);
            const Run all = stored(job, args->keys + n, b, s);
            int64_t places[PIECE];
            for (int64_t at_once = args->pages ? PIECE : to - from; from < to; from += at_once) {
                int64_t stop = to - from < at_once ? to : from + at_once;
                Run run = args->pages ? piece_of(args, all, b, from, to, places) : part(all, from, stop);
                limit(&tile, own_low, own_high, count, group, from, stop);
                attend_keys(&tile, &run, tile.low, tile.high);
            }
        }
        write_rows(&tile, &of, count);
    }
    if (allocated) free(tile.memory);
    free(indices);
    return allocated && indices;
}

/* The tokens that chose a unit attend to it together; the sums of each are held until it has seen all of its units. */
int longspan_units_prefill(const Units *args, WorkQueue *queue) {
    Tile tile;
    const Job *job = &args->job;
    const int64_t tokens = args->tokens, count = args->count, size = args->size, available = args->keys.count / size;
    const int64_t unit_step = args->unit_step[2], position_step = args->position_step[2];
    const int64_t group = job->heads / job->sharing, parts = (job->rows + tokens - 1) / tokens, dv = job->dv;
    const int64_t most = MOST / group > 0 ? MOST / group : 1, rows = tokens * group, pairs = tokens * count;
    int allocated = make_tile(&tile, (int)(most * group), (int)job->dk, (int)dv, (int)job->kind, job->softcap);
    float *sum = malloc(sizeof(float) * (size_t)(rows * (dv + 2)));
    int64_t *who = malloc(sizeof(int64_t) * (size_t)(2 * pairs + available + 1));
    const int good = allocated && sum && who;
    if (good) EACH(item, queue) {
        int64_t b = item / (job->sharing * parts), s = item / parts % job->sharing, first = item % parts * tokens;
        int64_t here = job->rows - first < tokens ? job->rows - first : tokens;
        float *top = sum + rows * dv, *total = top + rows;
        for (int64_t r = 0; r < here * group; r++)
            read_row(job, b, s * group + r % group, first + r / group, sum + r * dv, top + r, total + r);
        const int64_t *units = units_of(args, b, s, first), *at = positions_of(args, b, s, first);
        /* The tokens and positions of each unit side by side: a sort by counting. */
        int64_t *place = who + pairs, *ends = place + pairs;
        memset(ends, 0, sizeof(int64_t) * (size_t)(available + 1));
        for (int64_t t = 0; t < here; t++)
            for (int64_t n = 0; n < count; n++) ends[units[t * unit_step + n] + 1]++;
        for (int64_t u = 0; u < available; u++) ends[u + 1] += ends[u];
        for (int64_t t = 0; t < here; t++)
            for (int64_t n = 0; n < count; n++) {
                int64_t to = ends[units[t * unit_step + n]]++;
                who[to] = t, place[to] = at[t * position_step + n];
            }
        Group of = {job, b, s, group, first};
        for (int64_t u = 0, from = 0; u < available; from = ends[u++])
            for (int64_t begin = from; begin < ends[u]; begin += most) {
                int64_t some = ends[u] - begin < most ? ends[u] - begin : most;
                shape(&tile, (int)(some * group));
                begin_tile(&tile);
                load_rows(&tile, &of, who + begin, place + begin, some, &args->table);
                Run run = part(stored(job, &args->keys, b, s), u * size, (u + 1) * size);
                attend_keys(&tile, &run, 0, 0);
                add_rows(&tile, group, who + begin, some, sum, top, total);
            }
        for (int64_t r = 0; r < here * group; r++)
            write_row(job, b, s * group + r % group, first + r / group, sum + r * dv, top[r], total[r]);
    }
    if (allocated) free(tile.memory);
    free(sum), free(who);
    return good;
}

/* An item is a block of query rows of a group of heads that share keys and a choice. */
int longspan_tokens_prefill(const Tokens *args, WorkQueue *queue) {
    Tile tile;
    const Job *job = &args->job;
    const int64_t each = args->each, group = job->heads / job->sharing;
    int64_t *indices = malloc(2 * sizeof(int64_t) * (size_t)each), *at = indices + each;
    int allocated = make_tile(&tile, (int)(each * group), (int)job->dk, (int)job->dv, (int)job->kind, job->softcap);
    if (allocated && indices) EACH(item, queue) {
        const int64_t b = item / (job->sharing * args->row_blocks), s = item / args->row_blocks % job->sharing;
        const int64_t *block = args->blocks + item % args->row_blocks * 3;
        const int64_t first = block[0], count = block[1] - first;
        const int64_t *ends = ends_of(args, b, s, block[2]), *tokens = tokens_of(args, b, s, block[2]);
        Group of = {job, b, s, group, first};
        shape(&tile, (int)(count * group));
        begin_rows(&tile, &of, count);
        for (int64_t t = 0; t < count; t++) indices[t] = t, at[t] = first + t;
        for (int64_t n = 0, from = 0; n < args->runs; n++) {
            if (from >= ends[n]) continue;
            load_rows(&tile, &of, indices, at, count, args->tables + n);
            Run run = stored(job, &args->keys, b, s);
            run.tokens = tokens + from, run.count = ends[n] - from;
            attend_keys(&tile, &run, 0, 0);
            from = ends[n];
        }
        write_rows(&tile, &of, count);
    }
    if (allocated) free(tile.memory);
    free(indices);
    return allocated && indices;
}
