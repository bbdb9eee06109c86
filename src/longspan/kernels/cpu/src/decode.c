/* One new token of a layer, in up to five steps: it is appended to the stored ones, reduced, scored against entries, chooses
   among them, and attends. */

#include <stdlib.h>

#include "topk.h"
#include "codes.h"

static void permute_channels(char *to, const char *from, const int64_t *order, int64_t width, int64_t size) {
    if (!order) memcpy(to, from, (size_t)(width * size));
    else if (size == 4)
        for (int64_t d = 0; d < width; d++) ((uint32_t *)to)[d] = ((const uint32_t *)from)[order[d]];
    else
        for (int64_t d = 0; d < width; d++) ((uint16_t *)to)[d] = ((const uint16_t *)from)[order[d]];
}

static float rounded(float x, int kind) {
    float stored;
    store_one(&stored, 0, x, kind);
    return load_one(&stored, 0, kind);
}

/* The queries of a group in the form that entries are scored by. */
static void form_scoring_query(const DecodeStep *of, int64_t b, int64_t h) {
    const Job *job = &of->job;
    const QueryForScoring *scoring = &of->scoring;
    const int64_t group = job->heads / job->kv_heads, heads = scoring->sums ? job->kv_heads : job->heads;
    for (int64_t sign = 0; sign < scoring->signs; sign++)
        for (int64_t g = 0; g < group; g++) {
            const char *q = query_of(job, b, h * group + g, 0);
            float *to = scoring->query + ((b * scoring->signs + sign) * heads + (scoring->sums ? h : h * group + g)) * job->dk;
            for (int64_t d = 0; d < job->dk; d++) {
                float x = load_one(q, d, (int)job->kind);
                if (scoring->signs == 2) x = sign == 0 ? (x < 0 ? 0 : x) : (x > 0 ? 0 : x);
                to[d] = scoring->sums && g > 0 ? to[d] + x : x;
                if (scoring->rounds && g == group - 1) to[d] = rounded(to[d], (int)job->kind);
            }
        }
}

/* An item is a key head of a row of the batch. Sizes of heads, and what rotates them, are those of all rows. */
static int64_t appended(const DecodeStep *of) { return of->batch * of->job.kv_heads; }

int longspan_decode_append(const DecodeRows *all, WorkQueue *queue) {
    const Job *any = &step_at(all, 0)->job;
    const int kind = (int)any->kind;
    const int64_t size = bytes_of(kind), group = any->heads / any->kv_heads, dk = any->dk;
    char *key = malloc((size_t)(dk * size));
    if (!key) return 0;
    EACH(taken, queue) {
        int64_t item = taken;
        const DecodeStep *of = step_of(all, &item, appended);
        const Job *job = &of->job;
        const int64_t b = item / job->kv_heads, h = item % job->kv_heads;
        permute_channels(key, of->k + (b * of->k_step[0] + h * of->k_step[1]) * size, of->order, dk, size);
        for (int64_t n = 0; n < of->rotations; n++) {
            const Rotation *one = of->stored + n;
            const int64_t *step = one->keys.step, row = of->row * job->pairs;
            char *to = (char *)one->keys.data + (b * step[0] + h * step[1] + of->at * step[2]) * size;
            rotate_stored(to, key, job, one->cos_sin.cos + row, one->cos_sin.sin + row);
        }
        const char *value = of->v + (b * of->v_step[0] + h * of->v_step[1]) * size;
        const int64_t place = b * job->v_step[0] + h * job->v_step[1] + of->at * job->v_step[2];
        memcpy((char *)job->v + place * size, value, (size_t)(job->dv * size));
        for (int64_t n = h * group; n < (h + 1) * group; n++) {
            const char *query = of->q + (b * of->q_step[0] + n * of->q_step[1]) * size;
            char *permuted = (char *)query_of(job, b, n, 0);
            permute_channels(permuted, query, of->order, dk, size);
            if (of->kept[0])
                memcpy(of->kept[0] + (b * of->kept_step[0][0] + n * of->kept_step[0][1] + of->tail * dk) * size,
                       permuted, (size_t)(dk * size));
        }
        if (of->kept[1])
            memcpy(of->kept[1] + (b * of->kept_step[1][0] + h * of->kept_step[1][1] + of->tail * dk) * size, key,
                   (size_t)(dk * size));
        if (of->kept[2])
            memcpy(of->kept[2] + (b * of->kept_step[2][0] + h * of->kept_step[2][1] + of->tail * job->dv) * size, value,
                   (size_t)(job->dv * size));
        if (of->scoring.query && (of->stop || of->scoring.theta_k)) form_scoring_query(of, b, h);
        if (of->scoring.key)
            for (int64_t d = 0; d < dk; d++) of->scoring.key[(b * job->kv_heads + h) * dk + d] = load_one(key, d, kind);
    }
    free(key);
    return 1;
}

enum { THETA_ROWS = BLOCK }; /* of an item */

/* Reduced key and query (a linear map each): the key becomes an entry, the query scores entries. An item is some rows of a
   map, for a row of the batch. All rows have the same maps. */
static int64_t reduced(const DecodeStep *of) {
    return of->scoring.theta_k ? 2 * of->batch * ((of->scoring.width + THETA_ROWS - 1) / THETA_ROWS) : 0;
}

int longspan_decode_reduce(const DecodeRows *all, WorkQueue *queue) {
    const Job *any = &step_at(all, 0)->job;
    const int kind = (int)any->kind, width = (int)(any->kv_heads * any->dk);
    const int64_t size = bytes_of(kind);
    float *row = malloc((size_t)width * sizeof(float)), sums[BLOCK + LANES];
    if (!row) return 0;
    EACH(taken, queue) {
        int64_t item = taken;
        const DecodeStep *of = step_of(all, &item, reduced);
        const QueryForScoring *scoring = &of->scoring;
        const Choice *choice = &of->choice;
        const int64_t parts = (scoring->width + THETA_ROWS - 1) / THETA_ROWS;
        const int64_t b = item / (2 * parts), from = item % parts * THETA_ROWS;
        const int is_key = item / parts % 2 == 0;
        const float *x = (is_key ? scoring->key : scoring->query) + b * width;
        const Run run = {.keys = is_key ? scoring->theta_k : scoring->theta_q, .key_step = width * size, .count = scoring->width};
        const int n = scoring->width - from < THETA_ROWS ? (int)(scoring->width - from) : THETA_ROWS;
        char *entry = (char *)choice->entries + (b * choice->step[0] + of->at * choice->step[2]) * size;
        for (int64_t d = 0; d < width; d++) row[lane_order(d, width, kind)] = x[d];
        if (kind == BF16) products(row, &run, from, n, width, 0, 1, sums, 1, BF16);
        else if (kind == FP16) products(row, &run, from, n, width, 0, 1, sums, 1, FP16);
        else products(row, &run, from, n, width, 0, 1, sums, 1, FP32);
        for (int64_t c = 0; c < n; c++)
            if (is_key) store_one(entry, from + c, sums[c], kind);
            else scoring->reduced_q[b * scoring->width + from + c] = rounded(sums[c], kind);
    }
    free(row);
    return 1;
}

/* An item is a range of entries, for one that chooses (a head, a group or the layer) in a row of the batch. */
static int64_t ranges_of(const DecodeStep *of) {
    return (of->stop - of->choice.first + of->choice.each - 1) / of->choice.each;
}

static int64_t scored(const DecodeStep *of) { return of->stop ? of->batch * of->choice.choosing * ranges_of(of) : 0; }

int longspan_decode_score(const DecodeRows *all, WorkQueue *queue) {
    float *vectors = 0, sums[BLOCK + LANES];
    int64_t room = 0;
    EACH(taken, queue) {
        int64_t item = taken;
        const DecodeStep *of = step_of(all, &item, scored);
        const QueryForScoring *scoring = &of->scoring;
        const Choice *choice = &of->choice;
        const int kind = (int)choice->kind, width = (int)scoring->width;
        const int64_t terms = scoring->signs * choice->parts, size = bytes_of(kind), items = ranges_of(of);
        const float *query = scoring->theta_q ? scoring->reduced_q : scoring->query;
        const int64_t heads = choice->parts * choice->choosing; /* of `query` */
        if (terms * width > room) {
            free(vectors);
            vectors = malloc((size_t)(room = terms * width) * sizeof(float));
            if (!vectors) return 0;
        }
        const int64_t row = item / items, b = row / choice->choosing, s = row % choice->choosing;
        const int64_t from = choice->first + item % items * choice->each;
        const int64_t to = from + choice->each < of->stop ? from + choice->each : of->stop;
        float *scores = choice->scores + row * choice->room;
        for (int64_t x = 0; x < terms; x++) {
            const int64_t sign = x / choice->parts, head = choice->parts > 1 ? x % choice->parts : s;
            const float *q = query + ((b * scoring->signs + sign) * heads + head) * width;
            for (int64_t d = 0; d < width; d++) vectors[x * width + lane_order(d, width, kind)] = q[d];
        }
        for (int64_t first = from; first < to; first += BLOCK) {
            const int n = to - first < BLOCK ? (int)(to - first) : BLOCK;
            for (int64_t x = 0; x < terms; x++) {
                const int64_t sign = x / choice->parts;
                const int64_t head = choice->parts > 1 ? x % choice->parts : s * choice->heads / choice->choosing;
                const int64_t at = b * choice->step[0] + head * choice->step[1] + sign * choice->sign_step;
                const Run run = {.keys = choice->entries + at * size, .key_step = choice->step[2] * size, .count = to};
                const float *q = vectors + x * width;
                if (kind == BF16) products(q, &run, first, n, width, 0, 1, sums, 1, BF16);
                else if (kind == FP16) products(q, &run, first, n, width, 0, 1, sums, 1, FP16);
                else products(q, &run, first, n, width, 0, 1, sums, 1, FP32);
                for (int c = 0; c < n; c++) scores[first + c] = x ? scores[first + c] + sums[c] : sums[c];
            }
        }
    }
    free(vectors);
    return 1;
}

/* An item is one that chooses in a row of the batch. */
static int64_t choices_of(const DecodeStep *of) { return of->stop ? of->batch * of->choice.choosing : 0; }

int longspan_decode_choose(const DecodeRows *all, WorkQueue *queue) {
    EACH(taken, queue) {
        int64_t item = taken;
        const DecodeStep *of = step_of(all, &item, choices_of);
        const Choice *choice = &of->choice;
        choose_topk(choice->scores + item * choice->room + choice->first, of->stop - choice->first, choice->count,
                  choice->first, (float)choice->tie, choice->prefer_last, choice->near,
                  choice->nearby + (choice->near ? item * choice->room : 0), choice->chosen + item * choice->count);
    }
    return 1;
}

static void attend_chosen(Softmax *rows, const DecodeStep *of, int64_t b, int64_t s, char *block) {
    const Job *job = &of->job;
    const ChosenUnits *units = &of->units;
    const int64_t choosing = of->choice.choosing, count = of->choice.count;
    const int64_t *unit = of->choice.chosen + (b * choosing + s * choosing / job->sharing) * count;
    const int64_t *at = units->positions + of->row * units->position_step;
    const Rotation *one = of->stored + units->rotation;
    for (int64_t n = 0, same; n < count; n += same) {
        const int64_t rotated = (at[n] + unit[n] % units->block * units->size) * job->pairs;
        rotate_queries(rows, job, b, s, 0, units->table.cos + rotated, units->table.sin + rotated);
        same = 1;
        if (units->size == 1) { /* single tokens that are seen alike are one run */
            while (n + same < count && at[n + same] == at[n]) same++;
            attend_stored(rows, of, one, b, s, unit + n, 0, same, block);
        } else attend_stored(rows, of, one, b, s, 0, unit[n] * units->size, units->size, block);
    }
}

/* An item is a group of heads that share keys and a choice, in a row of the batch. */
static int64_t attending(const DecodeStep *of) { return of->batch * of->job.sharing; }

int longspan_decode_attend(const DecodeRows *all, WorkQueue *queue) {
    Softmax rows = {0};
    int64_t sharing = 0; /* of those that `rows` has memory for */
    const Job *any = &step_at(all, 0)->job;
    char *block = malloc((size_t)(BLOCK * (any->dk + any->dv) * bytes_of((int)any->kind)));
    if (!block) return 0;
    EACH(taken, queue) {
        int64_t item = taken;
        const DecodeStep *of = step_of(all, &item, attending);
        const BandRange *bands = band_ranges_of(of);
        Job local = of->job, *job = &local;
        job->out = of->out;
        if (job->sharing != sharing) {
            free(rows.q);
            if (!init_rows(&rows, job)) {
                free(block);
                return 0;
            }
            sharing = job->sharing;
        }
        const int64_t b = item / job->sharing, s = item % job->sharing;
        load_partial(&rows, job, b, s, 0);
        for (const BandRange *band = bands; band < bands + of->bands; band++) {
            const int64_t low = band->low[of->row], high = band->high[of->row], rotated = of->row * job->pairs;
            if (low >= high) continue;
            rotate_queries(&rows, job, b, s, 0, band->cos_sin.cos + rotated, band->cos_sin.sin + rotated);
            attend_stored(&rows, of, of->stored + band->rotation, b, s, 0, low, high - low, block);
        }
        if (of->stop) attend_chosen(&rows, of, b, s, block);
        write_rows(&rows, job, b, s, 0);
    }
    free(rows.q);
    free(block);
    return 1;
}
