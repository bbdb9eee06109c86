/* A kernel on several threads: those of the OpenMP that is there already, or of this call's own.

   OpenMP's threads wait for their next work by going round in circles for a while. Threads beside them would get half of
   the processor, so work is given to those where they can be had. */

#include <pthread.h>

#include "share.h"

enum { MOST_THREADS = 256 };

/* OpenMP's own entry: `work(with)` on so many threads, or fewer, of which this one is one. */
typedef void Start(void (*work)(void *), void *with, unsigned threads, unsigned flags);

typedef struct {
    Kernel *kernel;
    const void *given;
    Share share;
    int failed;
} Team;

static void work(void *with) {
    Team *team = with;
    if (__atomic_load_n(&team->share.next, __ATOMIC_RELAXED) >= team->share.items) return; /* before it takes memory */
    if (!team->kernel(team->given, &team->share)) __atomic_store_n(&team->failed, 1, __ATOMIC_RELAXED);
}

static void *begin(void *with) {
    work(with);
    return 0;
}

int longspan_team(Kernel *kernel, const void *given, int64_t items, int64_t threads, Start *start) {
    Team team = {kernel, given, {items, 0}, 0};
    if (threads > 1 && start) start(work, &team, (unsigned)threads, 0);
    else {
        pthread_t others[MOST_THREADS];
        int made = 0;
        while (made < threads - 1 && made < MOST_THREADS && !pthread_create(others + made, 0, begin, &team)) made++;
        work(&team);
        while (made > 0) pthread_join(others[--made], 0);
    }
    return !team.failed;
}
