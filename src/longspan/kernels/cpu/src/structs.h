/* The structures that Python packs: structs.py parses this file, and the compiler compares the sizes (layout.c).
   Steps are strides in numbers. B, H, D and the other letters of shapes are those of bands.py. */

#ifndef LONGSPAN_STRUCTS_H
#define LONGSPAN_STRUCTS_H

#include <stdint.h>

typedef struct {
    const char *q, *v;
    char *out;
    float *lse;
    int64_t q_step[3], v_step[3], out_step[3], lse_step[3]; /* batch row, head, token */
    int64_t heads, kv_heads, sharing, rows, dk, dv;
    int64_t kind, start, pairs, pair_stride; /* channels from `start` on rotate; a pair's are 1 or `pairs` channels apart */
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

/* Bands: query t of batch row b sees the band's keys low[band, p, t] : high[band, p, t] and is rotated by row p, t of the
   band's table; p is 0 if all rows of the batch see the same places, and else b. Key j of a row is stored key j of that
   row, or, if there is a table of pages, key pages[b, j / page_size] * page_step + j % page_size. */
typedef struct {
    Job job;
    const int64_t *low, *high;
    int64_t bands, plans, tokens; /* tokens of a tile */
    const int32_t *pages;         /* [batch row, page_columns], or null */
    int64_t page_size, page_step, page_row, page_columns;
    Keys keys[];           /* of each band; a Table of each follows */
} Banded;

/* Units of `size` tokens: query t sees, for each n < count, unit units[b, s, t, n] and is rotated for it by row
   positions[b, s, t, n] of the table. */
typedef struct {
    Job job;
    Keys keys;
    Table table;
    const int64_t *units, *positions;
    int64_t unit_step[3], position_step[3];
    int64_t count, size;
    int64_t tokens; /* whose sums are held until they have seen all of their units */
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

/* Representations of chunks, which are the batch of the job; token t of a chunk is rotated by row t of the table. */
typedef struct {
    Job job;
    Keys keys;
    Table table;
    const int64_t *order;   /* [dk], the value channels that meet the key channels */
    float *out;             /* [H, chunks, dk] */
    int64_t chunks, tokens; /* tokens of a tile */
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
    const float *q;  /* [batch row, chooser, query, part, channel] */
    const char *keys;
    float *out;      /* [batch row, chooser, chunk, key] */
    const int64_t *edges, *stops;
    int64_t step[3]; /* of the keys' batch rows, heads and tokens, in numbers */
    int64_t sharing; /* choosers in a row of the batch */
    int64_t rows, chunks, parts, width, kv_heads, count;
    int64_t tile;    /* queries whose scores are held together */
    int64_t kind;
} TokenScores;

/* A packed matrix of `outs` rows: number k of a row is a code times the scale of its group, plus the group's minimum. Codes
   of 4 bits: byte n of the 16 of a group of 32 has its code n, and its code n + 16 in the high half. The fields that differ
   from call to call come first, here and in Packed. */
typedef struct {
    char *out;             /* [rows, outs] */
    const float *bias;     /* [outs], or null */
    const float *residual; /* [rows, outs], added, or null */
    int64_t kind;          /* of out */
    const char *codes, *scales, *minima; /* [outs, width], [outs, width / group] twice; no minima: null */
    int64_t outs, group, bits;
    int64_t scale_kind;    /* of scales and minima */
    int64_t items;         /* of the work: parts of `each` rows, the last one maybe fewer */
} Matrix;

/* Rows times `count` packed matrices. The inputs are x, or x over its root mean square and times `norm`, or silu(x) times
   `times`. */
typedef struct {
    const char *x;         /* [rows, width] */
    float *inputs;         /* room for each row's inputs and the sums of their groups, rounded up to 16 */
    int64_t rows, first;   /* of x; the first row of the matrix of which numbers are asked */
    const float *times;    /* [rows, width], or null */
    int64_t *beyond;       /* set to 1 if a product is not finite or beyond `most`; or null */
    int64_t kind;          /* of x */
    int64_t width, group;  /* of sums: that of all matrices with minima */
    int64_t each;          /* rows of a matrix of an item of the work */
    int64_t count;
    const float *norm;     /* [width], the weights of a norm, or null */
    double epsilon, most;
    int64_t next;          /* bytes from here to the products that follow; those of one call are on the same rows */
    Matrix matrices[];
} Packed;

/* The places of the `count` largest scores of each row, from `first` on and before the row's stop; see choose_topk. */
typedef struct {
    const float *scores;  /* rows of n */
    const int64_t *stops; /* of `tokens` rows, repeated; null if every row ends at n */
    int64_t *to;
    int64_t n, count, first, tokens, prefer_last, near;
    double tie;
} TopK;

/* Tokens before `count` in int8, whose exact ones are never read; none if `codes` is null. Token t of a head is codes times
   scales: those of row rows[t], of row t if that is null, and `scale_width` of them, one or as many as channels. */
typedef struct {
    const int8_t *codes;
    const float *scales;
    const int64_t *rows;
    int64_t code_step[2], scale_step[2]; /* batch row, head, in numbers */
    int64_t width, scale_width, count;
} Codes;

/* A stored rotation of the keys, and the table that rotates new ones. */
typedef struct {
    Keys keys;
    Table cos_sin;
    Codes codes;
} Rotation;

/* Keys low[row] : high[row] of a stored rotation; the query that sees them is rotated by its row of the table. */
typedef struct {
    const int64_t *low, *high;
    Table cos_sin;
    int64_t rotation;
} BandRange;

/* How a query becomes the query that entries are scored by, [batch row, sign, head, width] in fp32. */
typedef struct {
    float *query, *key; /* `key` [batch row, kv_heads * dk] is the new one, if keys are reduced */
    int64_t sums;       /* whether the queries of a group are summed */
    int64_t rounds;     /* whether the sum is rounded to the stored dtype */
    int64_t signs;      /* 2: positive and negative channels meet entries of their own */
    int64_t width;
    const char *theta_q, *theta_k; /* [width, kv_heads * dk] in the stored dtype, or null */
    float *reduced_q;              /* [batch row, width] */
} QueryForScoring;

/* Entries that are scored and chosen from: those from `first` on, before the token's stop. */
typedef struct {
    const char *entries;
    int64_t step[3], sign_step; /* batch row, head, entry; from those of one sign to those of the other */
    int64_t heads, kind;
    int64_t parts;    /* heads whose scores are summed */
    int64_t choosing; /* how many choose in a row of the batch */
    int64_t each;     /* entries of an item of the work */
    float *scores, *nearby; /* [batch row, choosing, room] */
    int64_t room, first;
    int64_t *chosen; /* [batch row, choosing, count] */
    int64_t count, prefer_last, near;
    double tie;
} Choice;

/* Chosen units of `size` tokens: the query is rotated to positions[row, n] for the n-th, or `size` more for each unit before
   it in its block. */
typedef struct {
    int64_t rotation, size;
    const int64_t *positions;
    int64_t position_step, position_rows, block;
    Table table;
} ChosenUnits;

/* One new token of each row of a batch whose rows have stored, and see, the same places: those of one store that begin with
   as much padding. The fields that differ from token to token come first. */
typedef struct {
    const char *q, *k, *v;
    int64_t q_step[2], k_step[2], v_step[2]; /* batch row, head */
    char *out;
    int64_t at;   /* its place among the stored tokens */
    int64_t row;  /* its row of the ranges, positions and tables, which are computed for several tokens */
    int64_t tail; /* its place in `kept` */
    int64_t stop; /* one past the last entry to choose from; 0 if it chooses nothing */
    /* Of all. */
    Job job;              /* its queries are a buffer for permuted channels, its values the stored ones */
    int64_t batch;        /* rows */
    int64_t rows, tails;  /* rows of ranges, positions and tables; room in `kept` */
    const int64_t *order; /* [dk], the stored order of a query's or key's channels; null if it is their own */
    char *kept[3];        /* copies of the inputs: queries, keys, values, channels permuted; null if none is kept */
    int64_t kept_step[3][2];
    QueryForScoring scoring;
    Choice choice;
    ChosenUnits units;
    Codes values; /* tokens of the values in int8, as many as of the keys */
    int64_t rotations, bands;
    Rotation stored[]; /* a BandRange of each band follows */
} DecodeStep;

/* One new token of each row of a layer's batch, whatever each row has stored and sees. */
typedef struct {
    int64_t count;
    int64_t begins[]; /* where each DecodeStep begins, in bytes from here */
} DecodeRows;

#endif
