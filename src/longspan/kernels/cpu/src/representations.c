/* Representations of full chunks (Lu et al., 2024, Eqs 1 and 2): the batch is one of chunks, the rows are their tokens. */

#include "prefill_rows.h"

/* One chunk and key head in fp32: its rotated keys, its values, and the sum of its rows' outputs. */
typedef struct {
    float *keys, *values, *mean, *query, *weights; /* [l, dk], [l, dv], [group, dv], [dk], [l] */
} Chunk;

static int make_chunk(Chunk *chunk, const Job *job, int64_t group) {
    size_t numbers = (size_t)(job->rows * (job->dk + job->dv + 1) + group * job->dv + job->dk);
    if (!(chunk->keys = malloc(numbers * sizeof(float)))) return 0;
    chunk->values = chunk->keys + job->rows * job->dk, chunk->mean = chunk->values + job->rows * job->dv;
    chunk->query = chunk->mean + group * job->dv, chunk->weights = chunk->query + job->dk;
    return 1;
}

static void load_chunk(Chunk *chunk, const Job *job, Run run, const Table *table) {
    for (int64_t t = 0; t < job->rows; t++) {
        rotate_channels(chunk->keys + t * job->dk, job, run.keys + t * run.key_step, 1.0f, table->cos + t * job->pairs,
                      table->sin + t * job->pairs);
        for (int64_t d = 0; d < job->dv; d += LANES)
            store(chunk->values + t * job->dv + d,
                   load(run.values + t * run.value_step + d * bytes_of((int)job->kind), (int)job->kind));
    }
}

/* Eq 2: the sum of all rows' outputs, head by head. */
static void add_up(Chunk *chunk, Tile *tile, Group *of, const Table *table, const int64_t *each, int64_t tokens) {
    const Job *job = of->job;
    const int dv = (int)job->dv;
    memset(chunk->mean, 0, sizeof(float) * (size_t)(of->group * dv));
    for (of->first = 0; of->first < job->rows; of->first += tokens) {
        int64_t count = job->rows - of->first < tokens ? job->rows - of->first : tokens, h = 0;
        shape(tile, (int)(count * of->group));
        begin_tile(tile);
        load_rows(tile, of, each, each + of->first, count, table);
        Run run = {.keys = (char *)chunk->keys, .values = (char *)chunk->values, .key_step = job->dk * 4,
                   .value_step = dv * 4, .count = job->rows};
        attend_keys(tile, &run, 0, 0);
        for (int64_t at = 0; at < count * of->group; at += LANES) {
            int within;
            const float *panel = lanes_at(tile, tile->sum, dv, (int)at, &within);
            from_lanes(tile->rows, panel, tile->wide * LANES, within, dv);
            for (int64_t n = 0; n < LANES && at + n < count * of->group; n++) {
                float part = 1.0f / tile->total[at + n], *to = chunk->mean + h * dv;
                for (int d = 0; d < dv; d += LANES)
                    store(to + d, load(to + d, FP32) + load(tile->rows + n * dv + d, FP32) * part);
                if (++h == of->group) h = 0;
            }
        }
    }
}

/* Eq 1 of one head: `mean` is read in the channels' order in which it meets the keys. */
static void represent(float *to, const Chunk *chunk, const Job *job, const float *mean, const int64_t *order) {
    const int64_t dk = job->dk;
    float most = -INFINITY, total = 0.0f;
    for (int64_t d = 0; d < dk; d++) chunk->query[d] = mean[order[d]] * (job->scale * LOG2_E / (float)job->rows);
    for (int64_t t = 0; t < job->rows; t++) {
        f8 sum = all(0.0f);
        for (int64_t d = 0; d < dk; d += LANES)
            sum += load(chunk->keys + t * dk + d, FP32) * load(chunk->query + d, FP32);
        float score = 0.0f;
        for (int n = 0; n < LANES; n++) score += sum[n];
        chunk->weights[t] = score;
        most = score > most ? score : most;
    }
    memset(to, 0, sizeof(float) * (size_t)dk);
    for (int64_t t = 0; t < job->rows; t++) {
        float weight = exp2f(chunk->weights[t] - most);
        total += weight;
        for (int64_t d = 0; d < dk; d += LANES)
            store(to + d, load(to + d, FP32) + load(chunk->keys + t * dk + d, FP32) * weight);
    }
    for (int64_t d = 0; d < dk; d++) to[d] /= total;
}

int longspan_representations(const Representations *args, WorkQueue *queue) {
    Tile tile;
    Chunk chunk;
    const Job *job = &args->job;
    const int64_t tokens = args->tokens, group = job->heads / job->sharing, dk = job->dk;
    const int tile_ready = make_tile(&tile, (int)(tokens * group), (int)dk, (int)job->dv, FP32, 0.0f);
    const int chunk_ready = make_chunk(&chunk, job, group);
    int64_t *each = malloc(sizeof(int64_t) * (size_t)job->rows);
    const int good = tile_ready && chunk_ready && each;
    for (int64_t t = 0; good && t < job->rows; t++) each[t] = t;
    if (good) EACH(item, queue) {
        int64_t n = item / job->sharing, s = item % job->sharing;
        Group of = {job, n, s, group, 0};
        load_chunk(&chunk, job, stored(job, &args->keys, n, s), &args->table);
        add_up(&chunk, &tile, &of, &args->table, each, tokens);
        for (int64_t h = 0; h < group; h++)
            represent(args->out + ((s * group + h) * args->chunks + n) * dk, &chunk, job, chunk.mean + h * job->dv,
                      args->order);
    }
    if (tile_ready) free(tile.memory);
    if (chunk_ready) free(chunk.keys);
    free(each);
    return good;
}
