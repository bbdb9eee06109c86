/* Pieces of a text whose queries choose tokens together: each is scored, chooses and sees what it chose by itself, so
   that several threads have pieces of their own. */

#include "topk.h"
#include "prefill_rows.h"
#include "token_scores.h"

/* What all tokens are worth to a piece: queries are scored some at a time. */
static void score_piece(ScoreTile *tile, const TokenScores *scoring, int64_t chooser, int64_t from, int64_t to, float *found,
                        float *more) {
    for (int64_t first = from; first < to; first += scoring->tile) {
        const int64_t count = to - first < scoring->tile ? to - first : scoring->tile, n = scoring->count;
        score_queries(tile, scoring, chooser, first, count, first > from ? more : found);
        for (int64_t m = 0; first > from && m < n; m++) { /* what is no number stays none */
            const float one = found[m], other = more[m];
            found[m] = other > one || other != other ? other : one;
        }
    }
}

/* What queries `from : to` chose is seen by the heads that share it. */
static void see_piece(Tile *tile, const QueryChunks *of, int64_t b, int64_t s, int64_t from, int64_t to,
                      const int64_t *chosen, int64_t *own, int64_t *turned) {
    const Job *job = &of->job;
    const int64_t group = job->heads / job->sharing;
    for (int64_t first = from; first < to; first += of->each) {
        const int64_t count = to - first < of->each ? to - first : of->each;
        Group rows = {job, b, s, group, first};
        shape(tile, (int)(count * group));
        begin_rows(tile, &rows, count);
        for (int64_t t = 0; t < count; t++) own[t] = t, turned[t] = first + t;
        load_rows(tile, &rows, own, turned, count, &of->table);
        Run run = stored(job, &of->keys, b, s);
        run.tokens = chosen, run.count = of->count;
        see(tile, &run, 0, 0);
        write_rows(tile, &rows, count);
    }
}

int longspan_query_chunks(const QueryChunks *of, WorkQueue *queue) {
    const Job *job = &of->job;
    const int64_t group = job->heads / job->sharing, choosing = of->scoring.sharing, each = of->each;
    const int64_t room = of->stops[of->chunks - 1] - of->first;
    TokenScores scoring = of->scoring;
    ScoreTile scored;
    Tile tile;
    scoring.count = room;
    float *found = malloc(3 * sizeof(float) * (size_t)room), *more = found + room, *nearby = more + room;
    int64_t *chosen = malloc(sizeof(int64_t) * (size_t)(of->count + 2 * each)), *own = chosen + of->count;
    const int made = make_score_tile(&scored, &scoring);
    const int good = made && make_tile(&tile, (int)(each * group), (int)job->dk, (int)job->dv, (int)job->kind,
                                       job->softcap);
    if (good && found && chosen) EACH(item, queue) {
        const int64_t b = item / of->chunks, p = of->chunks - 1 - item % of->chunks; /* the last score most */
        const int64_t from = of->edges[p], to = of->edges[p + 1];
        scoring.count = of->stops[p] - of->first;
        scoring.keys = of->scoring.keys + of->first * scoring.step[2] * bytes_of((int)scoring.kind);
        for (int64_t c = 0; c < choosing; c++) {
            score_piece(&scored, &scoring, b * choosing + c, from, to, found, more);
            choose_topk(found, scoring.count, of->count, of->first, 0.0f, 0, of->near, nearby, chosen);
            for (int64_t s = c * job->sharing / choosing; s < (c + 1) * job->sharing / choosing; s++)
                see_piece(&tile, of, b, s, from, to, chosen, own, own + each);
        }
    }
    const int done = good && found && chosen;
    if (made) free(scored.q);
    if (good) free(tile.held);
    free(found), free(chosen);
    return done;
}
