/* Pieces of a text whose queries choose tokens together: each is scored, chooses and sees what it chose by itself, so
   that several threads have pieces of their own. */

#include "best.h"
#include "rows.h"
#include "worth.h"

/* What all tokens are worth to a piece: queries are scored some at a time. */
static void score_piece(Scored *tile, const Worth *worth, int64_t chooser, int64_t from, int64_t to, float *found,
                        float *more) {
    for (int64_t first = from; first < to; first += worth->tile) {
        const int64_t count = to - first < worth->tile ? to - first : worth->tile, n = worth->count;
        find_worth(tile, worth, chooser, first, count, first > from ? more : found);
        for (int64_t m = 0; first > from && m < n; m++) { /* what is no number stays none */
            const float one = found[m], other = more[m];
            found[m] = other > one || other != other ? other : one;
        }
    }
}

/* What queries `from : to` chose is seen by the heads that share it. */
static void see_piece(Tile *tile, const Pieces *of, int64_t b, int64_t s, int64_t from, int64_t to,
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

int longspan_pieces(const Pieces *of, Share *share) {
    const Job *job = &of->job;
    const int64_t group = job->heads / job->sharing, choosing = of->worth.sharing, each = of->each;
    const int64_t room = of->stops[of->pieces - 1] - of->first;
    Worth worth = of->worth;
    Scored scored;
    Tile tile;
    worth.count = room;
    float *found = malloc(3 * sizeof(float) * (size_t)room), *more = found + room, *nearby = more + room;
    int64_t *chosen = malloc(sizeof(int64_t) * (size_t)(of->count + 2 * each)), *own = chosen + of->count;
    const int made = make_scored(&scored, &worth);
    const int good = made && make_tile(&tile, (int)(each * group), (int)job->dk, (int)job->dv, (int)job->kind,
                                       job->softcap);
    if (good && found && chosen) EACH(item, share) {
        const int64_t b = item / of->pieces, p = of->pieces - 1 - item % of->pieces; /* the last score most */
        const int64_t from = of->edges[p], to = of->edges[p + 1];
        worth.count = of->stops[p] - of->first;
        worth.keys = of->worth.keys + of->first * worth.step[2] * bytes_of((int)worth.kind);
        for (int64_t c = 0; c < choosing; c++) {
            score_piece(&scored, &worth, b * choosing + c, from, to, found, more);
            take_best(found, worth.count, of->count, of->first, 0.0f, 0, of->near, nearby, chosen);
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
