/* Kernels on several threads: those of the loaded OpenMP, or threads of this call.

   OpenMP's threads spin for a while before they sleep. Other threads beside them would get half of the processor, so the
   work goes to OpenMP's if it can. */

#include <pthread.h>
#include <sched.h>

#include "worksteal.h"

enum { MOST_THREADS = 256, MOST_STEPS = 8, PATIENCE = 4096 }; /* polls before the processor is yielded */

/* OpenMP's own entry: `work(with)` on at most `threads` threads, this one included. */
typedef void Start(void (*work)(void *), void *with, unsigned threads, unsigned flags);

/* One of several kernels that follow one another: it is finished when no item is left and all threads that began have ended. */
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

static int64_t load_atomic(const int64_t *at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }

static int finished(const Step *step) {
    if (load_atomic(&step->queue.next) < step->queue.items) return 0;
    int64_t ended = load_atomic(&step->ended); /* first: a thread that begins later finds no item */
    return load_atomic(&step->begun) == ended;
}

static void run_steps(void *with) {
    Pool *pool = with;
    for (Step *step = pool->steps; step < pool->steps + pool->count; step++) {
        if (load_atomic(&step->queue.next) < step->queue.items) { /* before it allocates */
            __atomic_fetch_add(&step->begun, 1, __ATOMIC_SEQ_CST);
            if (!step->kernel(pool->args, &step->queue)) __atomic_store_n(&pool->failed, 1, __ATOMIC_SEQ_CST);
            __atomic_fetch_add(&step->ended, 1, __ATOMIC_SEQ_CST);
        }
        if (step + 1 == pool->steps + pool->count) return; /* the caller waits for all threads */
        for (int looks = 0; !finished(step); looks++) {
            if (__atomic_load_n(&pool->failed, __ATOMIC_SEQ_CST)) return;
            if (looks >= PATIENCE) sched_yield();
        }
        if (__atomic_load_n(&pool->failed, __ATOMIC_SEQ_CST)) return;
    }
}

static void *run_thread(void *with) {
    run_steps(with);
    return 0;
}

typedef struct {
    Kernel *kernel;
    int64_t items;
} Work;

/* Runs `count` kernels one after the other, all on the same arguments. Returns null, or the check's reason why nothing was
   done; an empty string: there was no memory, and some of the work may be done. */
const char *longspan_run(const Work *all, int64_t count, Check *check, const void *args, int64_t threads,
                          Start *start) {
    Step steps[MOST_STEPS];
    if (count > MOST_STEPS) return "there are more steps than one call runs";
    const char *wrong = check ? check(args) : 0;
    if (wrong) return wrong;
    for (int64_t n = 0; n < count; n++) steps[n] = (Step){all[n].kernel, {all[n].items, 0}, 0, 0};
    Pool pool = {args, steps, count, 0};
    if (threads > 1 && start) start(run_steps, &pool, (unsigned)threads, 0);
    else {
        pthread_t others[MOST_THREADS];
        int started = 0;
        const int most = threads - 1 < MOST_THREADS ? threads - 1 : MOST_THREADS;
        while (started < most && !pthread_create(others + started, 0, run_thread, &pool)) started++;
        run_steps(&pool);
        while (started > 0) pthread_join(others[--started], 0);
    }
    return pool.failed ? "" : 0;
}
