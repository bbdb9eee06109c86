/* Work that several threads share: each takes the next item until none is left. */

#ifndef LONGSPAN_WORKSTEAL_H
#define LONGSPAN_WORKSTEAL_H

#include <stdint.h>

typedef struct {
    int64_t items, next;
} WorkQueue;

/* A kernel of this library: its arguments and its items; returns 0 when there was no memory. */
typedef int Kernel(const void *args, WorkQueue *queue);

/* What is wrong with the arguments of a kernel, or null; see checks.c. */
typedef const char *Check(const void *args);

static inline int64_t next_item(WorkQueue *queue) { return __atomic_fetch_add(&queue->next, 1, __ATOMIC_SEQ_CST); }

#define EACH(item, queue)                                                                                              \
    for (int64_t item = next_item(queue), all_items = (queue)->items; item < all_items; item = next_item(queue))

#endif
