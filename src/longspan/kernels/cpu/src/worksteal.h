/* Work that several threads share: whoever works takes the next item until there is none. */

#ifndef LONGSPAN_WORKSTEAL_H
#define LONGSPAN_WORKSTEAL_H

#include <stdint.h>

typedef struct {
    int64_t items, next;
} WorkQueue;

/* A function of this library: what it is given, and the work; false when there was no memory. */
typedef int Kernel(const void *args, WorkQueue *queue);

/* What is wrong with what a kernel is given, or null; see checks.c. */
typedef const char *Check(const void *args);

static inline int64_t next_item(WorkQueue *queue) { return __atomic_fetch_add(&queue->next, 1, __ATOMIC_SEQ_CST); }

#define EACH(item, queue)                                                                                              \
    for (int64_t item = next_item(queue), all_items = (queue)->items; item < all_items; item = next_item(queue))

#endif
