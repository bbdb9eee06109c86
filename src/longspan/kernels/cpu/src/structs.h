/* What the Python side hands over: structs.py reads this file, and its sizes are compared when the library is loaded.
   Steps are in numbers unless they say bytes. Sizes go with what they are the sizes of, for checks.c. */

#ifndef LONGSPAN_STRUCTS_H
#define LONGSPAN_STRUCTS_H

#include <stdint.h>

typedef struct {
    const char *q, *v;
    char *out;
    float *lse;
    int64_t q_step[3], v_step[3], out_step[3], lse_step[3]; /* batch row, head, token */
    int64_t heads, kv_heads, sharing, rows, dk, dv;
    int64_t kind, start, pairs, pair_stride; /* channels `start + ...` turn: pair_stride by one, or by half of those that turn */
    int64_t accumulate;                      /* whether out and lse hold a part of the softmax already */
    float scale, softcap;
} Job;

typedef struct {
    const char *data;
    int64_t step[3];
    int64_t count; /* tokens of a row */
} Keys;

typedef struct {
    const float *cos, *sin; /* [rows, pairs] */
    int64_t rows;
} Table;

/* Bands: token t sees the keys low[band, t] : high[band, t] of the band's keys, turned to row t of the band's table. */
typedef struct {
    Job job;
    const int64_t *low, *high;
    int64_t bands, tokens; /* tokens that see keys together */
    Keys keys[];           /* of each band; after them a Table of each */
} Banded;

/* Units of `size` tokens: token t sees, for each n < count, unit units[b, s, t, n] from row positions[b, s, t, n] of the
   table. */
typedef struct {
    Job job;
    Keys keys;
    Table table;
    const int64_t *units, *positions;
    int64_t unit_step[3], position_step[3];
    int64_t count, size;
    int64_t available, tokens; /* units that there are; tokens whose sums are kept until they have seen all of theirs */
    int64_t batch;
} Units;

/* Tokens that the queries of a chunk share: tokens[b, s, p, :], of which the n-th run, up to ends[b, s, p, n], is seen by
   queries rotated by tables[n]. */
typedef struct {
    Job job;
    Keys keys;
    const int64_t *tokens, *ends;
    const int64_t *blocks; /* [row_blocks, 3]: the first query, one past the last, and their chunk; seen together */
    int64_t token_step[3], end_step[3]; /* batch row, what chooses in it, chunk */
    int64_t runs, chunks, row_blocks;
    int64_t each;         /* the most queries of a block */
    int64_t count, batch; /* tokens of a chunk */
    Table tables[];
} Tokens;

/* Chunks, the batch of the job, whose token t row t of the table turns; to out [H, n, dk] in fp32. */
typedef struct {
    Job job;
    Keys keys;
    Table table;
    const int64_t *order; /* [dk], of a value's channels those that meet the keys' */
    float *out;
    int64_t chunks, tokens; /* tokens that see keys together */
} Representations;

/* Products of queries [batch, heads, rows, width] in fp32 with keys [batch, heads, keys, width], to [batch, heads, rows,
   keys] in fp32. Steps are of the keys' batch rows, heads and tokens, in numbers. Width is a multiple of 8. */
typedef struct {
    const float *q;
    const char *keys;
    float *out;
    int64_t step[3];
    int64_t heads, rows, width, count, kind;
    int64_t each; /* keys of an item of the work */
} Products;

/* Scores of keys by chunks of queries: F(m) of token_scores.h for the queries edges[p] : edges[p + 1] and the keys before
   stops[p], of which `count` is the largest. */
typedef struct {
    const float *q;  /* [batch row, chooser, head, query, part, channel] */
    const char *keys;
    float *out;      /* [batch row, chooser, chunk, key] */
    const int64_t *edges, *stops;
    int64_t step[3]; /* of the keys' batch rows, heads and tokens, in numbers */
    int64_t sharing; /* choosers in a row of the batch */
    int64_t heads;   /* of a chooser; its queries are in several parts, or of several heads, and not both */
    int64_t rows, chunks, parts, width, kv_heads, count;
    int64_t tile;    /* queries whose scores are held together */
    int64_t kind;
} TokenScores;

/* Of each row `count` places from `first` on and before its stop; see choose_topk. */
typedef struct {
    const float *scores;  /* rows of n */
    const int64_t *stops; /* of each of `tokens` rows, over and over; null where every row ends at n */
    int64_t *to;
    int64_t n, count, first, tokens, prefer_last, near;
    double tie;
} TopK;

/* A stored rotation of the keys, and the table by which a new one is turned. */
typedef struct {
    Keys keys;
    Table cos_sin;
} Rotation;

/* Keys low[row] : high[row] of a rotation, which the query sees turned by its row of the table. */
typedef struct {
    const int64_t *low, *high;
    Table cos_sin;
    int64_t rotation;
} BandRange;

/* How the query becomes what entries are scored by, `query` [batch row, sign, head, width] in fp32. */
typedef struct {
    float *query, *key; /* `key` [batch row, kv_heads * dk] is the new one, for what is reduced */
    int64_t sums;       /* whether the queries of a group are summed */
    int64_t rounds;     /* and the sum rounded to what is stored */
    int64_t signs;      /* 2: channels above zero and below it meet entries of their own */
    int64_t width;
    const char *theta_q, *theta_k; /* [reduced, kv_heads * dk], or null; as stored */
    float *reduced_q;              /* [batch row, reduced] */
    int64_t reduced;
} QueryForScoring;

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
    int64_t position_step, position_rows;
    Table table;
} ChosenUnits;

/* One new token of a layer. What differs from token to token comes first. */
typedef struct {
    const char *q, *k, *v;
    int64_t q_step[2], k_step[2], v_step[2]; /* batch row, head */
    char *out;
    int64_t at;   /* its place among the stored ones */
    int64_t row;  /* of what is made ahead for several tokens: ranges, positions, tables */
    int64_t tail; /* its place among the inputs that are kept */
    int64_t stop; /* one past the last entry to choose from; 0 where it chooses nothing */
    /* Of all. */
    Job job;              /* its queries lie in a room of their own, channels in order; its values are the stored ones */
    int64_t rows, tails;  /* tokens that are made ahead for; inputs that there is room to keep */
    const int64_t *order; /* [dk], the channels of a query or key as they are stored; null where they are in order */
    char *kept[3];        /* inputs that are kept besides, in order: queries, keys, values; null where they are not */
    int64_t kept_step[3][2];
    QueryForScoring scoring;
    Choice choice;
    ChosenUnits units;
    int64_t rotations, bands;
    Rotation stored[]; /* after them a Seen of each band */
} DecodeStep;

#endif
