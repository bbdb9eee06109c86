/* Work that several threads share: whoever works takes the next item until there is none. */

#ifndef LONGSPAN_SHARE_H
#define LONGSPAN_SHARE_H

#include <stdint.h>

typedef struct {
    int64_t items, next;
} Share;

/* A function of this library: what it is given, and the work; false when there was no memory. */
typedef int Kernel(const void *given, Share *share);

/* What is wrong with what a kernel is given, or null; see checks.c. */
typedef const char *Check(const void *given);

static inline int64_t take(Share *share) { return __atomic_fetch_add(&share->next, 1, __ATOMIC_SEQ_CST); }

#define EACH(item, share)                                                                                              \
    for (int64_t item = take(share), all_items = (share)->items; item < all_items; item = take(share))

#endif
