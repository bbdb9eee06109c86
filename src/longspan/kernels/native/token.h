/* One new token of a layer, from its query, key and value to its output: what the steps of token.c are given. */

#ifndef LONGSPAN_TOKEN_H
#define LONGSPAN_TOKEN_H

#include "job.h"

/* A stored rotation of the keys, and the table by which a new one is turned. */
typedef struct {
    Keys keys;
    Table turns;
} Rotation;

/* Keys low[row] : high[row] of a rotation, which the query sees turned by its row of the table. */
typedef struct {
    const int64_t *low, *high;
    Table turns;
    int64_t rotation;
} Seen;

/* How the query becomes what entries are scored by, `asked` [batch row, sign, head, width] in fp32. */
typedef struct {
    float *asked, *key; /* `key` [batch row, kv_heads * dk] is the new one, for what is reduced */
    int64_t sums;       /* whether the queries of a group are summed */
    int64_t rounds;     /* and the sum rounded to what is stored */
    int64_t signs;      /* 2: channels above zero and below it meet entries of their own */
    int64_t width;
    const char *theta_q, *theta_k; /* [reduced, kv_heads * dk], or null; as stored */
    float *reduced_q;              /* [batch row, reduced] */
    int64_t reduced;
} Ask;

/* Entries that are scored, and the best of them: those from `first` on, before the token's stop. */
typedef struct {
    const char *entries;
    int64_t step[3], sign_step; /* batch row, head, entry; from those of one sign to those of the other */
    int64_t heads, kind;
    int64_t parts;    /* heads whose scores are summed */
    int64_t choosing; /* in a row of the batch */
    int64_t each;     /* entries of an item of the work */
    float *scores, *nearby; /* [batch row, choosing, room] */
    int64_t room, first;
    int64_t *chosen; /* [batch row, choosing, count] */
    int64_t count, prefer_last, near;
    double tie;
} Choice;

/* Units of `size` tokens that were chosen, seen from position positions[row, n]. */
typedef struct {
    int64_t rotation, size;
    const int64_t *positions;
    int64_t position_step;
    Table table;
} ChosenUnits;

typedef struct {
    /* Of this token. */
    const char *q, *k, *v;
    int64_t q_step[2], k_step[2], v_step[2]; /* batch row, head */
    char *out;
    int64_t at;   /* its place among the stored ones */
    int64_t row;  /* of what is made ahead for several tokens: ranges, positions, tables */
    int64_t tail; /* its place among the inputs that are kept */
    int64_t stop; /* one past the last entry to choose from; 0 where it chooses nothing */
    /* Of all. */
    Job job;              /* its queries lie in a room of their own, channels in order; its values are the stored ones */
    const int64_t *order; /* [dk], the channels of a query or key as they are stored; null where they are in order */
    char *kept[3];        /* inputs that are kept besides, in order: queries, keys, values; null where they are not */
    int64_t kept_step[3][2];
    Ask ask;
    Choice choice;
    ChosenUnits units;
    int64_t rotations, bands;
    Rotation stored[]; /* after them a Seen of each band */
} Token;

INLINE const Seen *seen_of(const Token *of) { return (const Seen *)(of->stored + of->rotations); }

#endif
