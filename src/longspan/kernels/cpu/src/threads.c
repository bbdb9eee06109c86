/* Kernels on several threads: those of the OpenMP that is there already, or of this call's own.

   OpenMP's threads wait for their next work by going round in circles for a while. Threads beside them would get half of
   the processor, so work is given to those where they can be had. */

#include <pthread.h>
#include <sched.h>

#include "worksteal.h"

enum { MOST_THREADS = 256, MOST_STEPS = 8, PATIENCE = 4096 }; /* looks at what others do before the processor is offered to them */

/* OpenMP's own entry: `work(with)` on so many threads, or fewer, of which this one is one. */
typedef void Start(void (*work)(void *), void *with, unsigned threads, unsigned flags);

/* One of several kernels that run one after the other: it is over when nothing is left to take and all who began have
   ended. */
typedef struct {
    Kernel *kernel;
    WorkQueue queue;
    int64_t begun, ended;
} Step;

typedef struct {
    const void *args;
    Step *steps;
    int64_t count;
    int failed;
} Pool;

static int64_t look(const int64_t *at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }

static int over(const Step *step) {
    if (look(&step->queue.next) < step->queue.items) return 0;
    int64_t ended = look(&step->ended); /* first: whoever begins later finds nothing */
    return look(&step->begun) == ended;
}

static void work(void *with) {
    Pool *pool = with;
    for (Step *step = pool->steps; step < pool->steps + pool->count; step++) {
        if (look(&step->queue.next) < step->queue.items) { /* before it takes memory */
            __atomic_fetch_add(&step->begun, 1, __ATOMIC_SEQ_CST);
            if (!step->kernel(pool->args, &step->queue)) __atomic_store_n(&pool->failed, 1, __ATOMIC_SEQ_CST);
            __atomic_fetch_add(&step->ended, 1, __ATOMIC_SEQ_CST);
        }
        if (step + 1 == pool->steps + pool->count) return; /* whoever started the team waits for all of it */
        for (int looks = 0; !over(step); looks++) {
            if (__atomic_load_n(&pool->failed, __ATOMIC_SEQ_CST)) return;
            if (looks >= PATIENCE) sched_yield();
        }
        if (__atomic_load_n(&pool->failed, __ATOMIC_SEQ_CST)) return;
    }
}

static void *begin(void *with) {
    work(with);
    return 0;
}

typedef struct {
    Kernel *kernel;
    int64_t items;
} Work;

/* `count` kernels one after the other, all given the same. Null, or why nothing was done: what the check says. What is
   empty says that there was no memory, and some of it may be done. */
const char *longspan_run(const Work *all, int64_t count, Check *check, const void *args, int64_t threads,
                          Start *start) {
    Step steps[MOST_STEPS];
    if (count > MOST_STEPS) return "there are more steps than one call takes";
    const char *wrong = check ? check(args) : 0;
    if (wrong) return wrong;
    for (int64_t n = 0; n < count; n++) steps[n] = (Step){all[n].kernel, {all[n].items, 0}, 0, 0};
    Pool pool = {args, steps, count, 0};
    if (threads > 1 && start) start(work, &pool, (unsigned)threads, 0);
    else {
        pthread_t others[MOST_THREADS];
        int made = 0;
        while (made < threads - 1 && made < MOST_THREADS && !pthread_create(others + made, 0, begin, &pool)) made++;
        work(&pool);
        while (made > 0) pthread_join(others[--made], 0);
    }
    return pool.failed ? "" : 0;
}
