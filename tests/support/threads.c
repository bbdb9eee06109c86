/* Several threads call kernels at once, each with memory of its own and each on several threads of its own; what they find
   is compared with what one finds alone. Compiled with the kernels under ThreadSanitizer by test_kernel_threads.py. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worksteal.h"
#include "structs.h"

enum { CALLERS = 4, ROUNDS = 20, HEADS = 4, KV = 2, ROWS = 96, STORED = 128, WIDTH = 16, SIZE = 16, CHOSEN = 3, STEPS = 2 };

typedef struct {
    Kernel *kernel;
    int64_t items;
} Work;

const char *longspan_run(const Work *all, int64_t count, Check *check, const void *args, int64_t threads,
                          void (*start)(void (*)(void *), void *, unsigned, unsigned));
int longspan_banded_prefill(const void *, WorkQueue *), longspan_units_prefill(const void *, WorkQueue *);
int longspan_topk(const void *, WorkQueue *), longspan_token_scores(const void *, WorkQueue *);
const char *longspan_check_banded(const void *), *longspan_check_units(const void *), *longspan_check_topk(const void *),
    *longspan_check_token_scores(const void *);

typedef struct {
    float q[HEADS * ROWS * WIDTH], k[KV * STORED * WIDTH], v[KV * STORED * WIDTH];
    float cos[STORED * WIDTH / 2], sin[STORED * WIDTH / 2];
    float out[HEADS * ROWS * WIDTH], lse[HEADS * ROWS], scores[HEADS * STORED];
    int64_t low[ROWS], high[ROWS], units[KV * ROWS * CHOSEN], positions[KV * ROWS * CHOSEN], chosen[HEADS * 8], edges[2], stops[1];
    Banded *banded;
    Units each;
    TokenScores scoring;
    TopK topk;
    int64_t threads;
} Caller;

static uint32_t state;
static float number(void) { return (float)((state = state * 1664525u + 1013904223u) >> 8) / (1 << 24) - 0.5f; }

static Caller *make(int64_t threads) {
    Caller *of = calloc(1, sizeof *of);
    state = 1;
    for (int n = 0; n < HEADS * ROWS * WIDTH; n++) of->q[n] = number();
    for (int n = 0; n < KV * STORED * WIDTH; n++) of->k[n] = number(), of->v[n] = number();
    for (int n = 0; n < STORED * WIDTH / 2; n++) of->cos[n] = 1.0f;
    for (int64_t t = 0; t < ROWS; t++) of->high[t] = STORED - ROWS + t + 1;
    for (int64_t n = 0; n < KV * ROWS * CHOSEN; n++) of->units[n] = (n / CHOSEN + 2 * (n % CHOSEN)) % (STORED / SIZE), of->positions[n] = n % STORED;
    Job job = {.q = (char *)of->q, .v = (char *)of->v, .out = (char *)of->out, .lse = of->lse,
               .q_step = {0, ROWS * WIDTH, WIDTH}, .v_step = {0, STORED * WIDTH, WIDTH}, .out_step = {0, ROWS * WIDTH, WIDTH},
               .lse_step = {0, ROWS, 1}, .heads = HEADS, .kv_heads = KV, .sharing = KV, .rows = ROWS, .dk = WIDTH, .dv = WIDTH,
               .pairs = WIDTH / 2, .pair_stride = WIDTH / 2, .scale = 0.25f};
    Keys keys = {(char *)of->k, {0, STORED * WIDTH, WIDTH}, STORED};
    Table table = {of->cos, of->sin, STORED};
    of->banded = calloc(1, sizeof(Banded) + sizeof(Keys) + sizeof(Table));
    *of->banded = (Banded){job, of->low, of->high, .bands = 1, .plans = 1, .tokens = 24};
    of->banded->keys[0] = keys;
    memcpy(of->banded->keys + 1, &table, sizeof table);
    of->each = (Units){job, keys, table, of->units, of->positions, {0, ROWS * CHOSEN, CHOSEN}, {0, ROWS * CHOSEN, CHOSEN},
                       CHOSEN, SIZE, 32, 1};
    of->each.job.accumulate = 1;
    of->edges[1] = ROWS, of->stops[0] = STORED;
    of->scoring = (TokenScores){of->q, (char *)of->k, of->scores, of->edges, of->stops, {0, STORED * WIDTH, WIDTH}, HEADS, ROWS, 1, 1,
                                WIDTH, KV, STORED, ROWS, 0};
    of->topk = (TopK){of->scores, 0, of->chosen, STORED, 8, 4, 1, 0, 1, 0.0};
    of->threads = threads;
    return of;
}

static void *run(void *with) {
    Caller *of = with;
    for (int n = 0; n < ROUNDS; n++) {
        const char *wrong[] = {
            longspan_run(&(Work){longspan_banded_prefill, KV * (ROWS / 24)}, 1, longspan_check_banded, of->banded, of->threads, 0),
            longspan_run(&(Work){longspan_units_prefill, KV * (ROWS / 32)}, 1, longspan_check_units, &of->each, of->threads, 0),
            longspan_run(&(Work){longspan_token_scores, HEADS}, 1, longspan_check_token_scores, &of->scoring, of->threads, 0),
            longspan_run(&(Work){longspan_topk, HEADS}, 1, longspan_check_topk, &of->topk, of->threads, 0),
        };
        for (int k = 0; k < 4; k++)
            if (wrong[k]) printf("refused: %s\n", wrong[k]), exit(2);
    }
    return 0;
}

int main(void) {
    Caller *alone = make(1), *callers[CALLERS];
    pthread_t threads[CALLERS];
    run(alone);
    for (int n = 0; n < CALLERS; n++) callers[n] = make(3);
    for (int n = 0; n < CALLERS; n++) pthread_create(threads + n, 0, run, callers[n]);
    for (int n = 0; n < CALLERS; n++) pthread_join(threads[n], 0);
    for (int n = 0; n < CALLERS; n++) {
        const Caller *one = callers[n];
        if (memcmp(one->out, alone->out, sizeof one->out) || memcmp(one->chosen, alone->chosen, sizeof one->chosen))
            return printf("caller %d found something else\n", n), 1;
    }
    printf("%d callers agree\n", CALLERS);
    return 0;
}
