/* Bounds of indices and positions, checked before a kernel runs: an index outside of a tensor would be read all the same.
   A check returns null, or what is wrong. */

#include "job.h"

static int inside(int64_t x, int64_t count) { return x >= 0 && x < count; }

static const char *ranges(const int64_t *low, const int64_t *high, int64_t rows, int64_t count) {
    for (int64_t t = 0; t < rows; t++)
        if (low[t] < high[t] && (low[t] < 0 || high[t] > count)) return "a range of keys ends outside of the stored ones";
    return 0;
}

/* The pages of the keys that any query of a row sees in a band. */
static const char *pages_of(const Banded *of, int64_t n) {
    for (int64_t p = 0; p < of->plans; p++) {
        const int64_t *low = of->low + (n * of->plans + p) * of->job.rows, *high = of->high + (low - of->low);
        const int32_t *pages = of->pages + p * of->page_row;
        int64_t from = INT64_MAX, to = 0;
        for (int64_t t = 0; t < of->job.rows; t++)
            if (low[t] < high[t]) from = low[t] < from ? low[t] : from, to = high[t] > to ? high[t] : to;
        for (int64_t page = from / of->page_size; from < to && page <= (to - 1) / of->page_size; page++)
            if (pages[page] < 0 || pages[page] * of->page_step + of->page_size > of->keys[n].count)
                return "a page lies outside of the stored ones";
    }
    return 0;
}

const char *longspan_check_banded(const Banded *of) {
    const Table *tables = tables_of(of);
    const int64_t rows = of->plans * of->job.rows;
    if (of->pages && of->page_size < 1) return "a page has no key";
    for (int64_t n = 0; n < of->bands; n++) {
        if (tables[n].rows < rows) return "a table of angles has fewer rows than there are queries";
        const int64_t count = of->pages ? of->page_columns * of->page_size : of->keys[n].count;
        const char *wrong = ranges(of->low + n * rows, of->high + n * rows, rows, count);
        if (!wrong && of->pages) wrong = pages_of(of, n);
        if (wrong) return wrong;
    }
    return 0;
}

const char *longspan_check_units(const Units *of) {
    if (of->size < 1) return "a unit has no token";
    const int64_t available = of->keys.count / of->size;
    for (int64_t b = 0; b < of->batch; b++)
        for (int64_t s = 0; s < of->job.sharing; s++)
            for (int64_t t = 0; t < of->job.rows; t++) {
                const int64_t *unit = units_of(of, b, s, t), *at = positions_of(of, b, s, t);
                for (int64_t n = 0; n < of->count; n++) {
                    if (!inside(unit[n], available)) return "a chosen unit lies outside of the stored keys";
                    if (!inside(at[n], of->table.rows)) return "a position lies outside of the table of angles";
                }
            }
    return 0;
}

const char *longspan_check_tokens(const Tokens *of) {
    for (int64_t n = 0; n < of->runs; n++)
        if (of->tables[n].rows < of->job.rows) return "a table of angles has fewer rows than there are queries";
    for (const int64_t *block = of->blocks; block < of->blocks + 3 * of->row_blocks; block += 3)
        if (block[0] < 0 || block[1] > of->job.rows || block[1] <= block[0] || block[1] - block[0] > of->each ||
            !inside(block[2], of->chunks))
            return "a chunk lies outside of the queries";
    for (int64_t b = 0; b < of->batch; b++)
        for (int64_t s = 0; s < of->job.sharing; s++)
            for (int64_t p = 0; p < of->chunks; p++) {
                const int64_t *tokens = tokens_of(of, b, s, p), *ends = ends_of(of, b, s, p);
                for (int64_t n = 0; n < of->runs; n++)
                    if (ends[n] < 0 || ends[n] > of->count) return "a run of chosen tokens ends outside of them";
                for (int64_t n = 0; n < of->count; n++)
                    if (!inside(tokens[n], of->keys.count)) return "a chosen token lies outside of the stored keys";
            }
    return 0;
}

const char *longspan_check_representations(const Representations *of) {
    if (of->table.rows < of->job.rows) return "the table of angles has fewer rows than a chunk has tokens";
    if (of->keys.count < of->job.rows) return "a chunk has fewer keys than queries";
    for (int64_t d = 0; d < of->job.dk; d++)
        if (!inside(of->order[d], of->job.dv)) return "a channel lies outside of a head";
    return 0;
}

static const char NEAR[] = "the number of nearby scores is negative";

const char *longspan_check_topk(const TopK *of) {
    if (of->near < 0) return NEAR;
    if (of->first < 0 || of->count < 0 || of->n - of->first < of->count) return "there are fewer scores than places";
    for (int64_t t = 0; of->stops && t < of->tokens; t++)
        if (of->stops[t] - of->first < of->count) return "a row has fewer scores than places";
    return 0;
}

const char *longspan_check_token_scores(const TokenScores *of) {
    if (of->chunks < 1 || of->edges[0] < 0 || of->edges[of->chunks] > of->rows) return "a chunk lies outside of the queries";
    for (int64_t p = 0; p < of->chunks; p++) {
        if (of->edges[p] >= of->edges[p + 1]) return "the chunks are not in order";
        if (of->stops[p] < 1 || of->stops[p] > of->count) return "a chunk is scored with keys outside of the stored ones";
    }
    return 0;
}

static const char *token_choice(const DecodeStep *of) {
    const Choice *choice = &of->choice;
    const ChosenUnits *units = &of->units;
    if (choice->first < 0 || choice->count < 0) return "the entries to choose from begin before the first";
    if (units->size < 1) return "a unit has no token";
    if (of->scoring.signs != 1 && of->scoring.signs != 2) return "a query has other signs than one or both";
    if (choice->near < 0) return NEAR;
    if (of->stop > choice->room || of->stop - choice->first < choice->count)
        return "there are other entries than a token chooses from";
    if (!inside(units->rotation, of->rotations) || of->stop * units->size > of->stored[units->rotation].keys.count)
        return "an entry stands for keys outside of the stored ones";
    const int64_t row = units->position_step ? of->row : 0, *at = units->positions + row * units->position_step;
    if (!inside(row, units->position_rows)) return "there are no positions for the token";
    if (units->block < 1) return "a block has no unit";
    for (int64_t n = 0; n < choice->count; n++)
        if (!inside(at[n], units->table.rows - (units->block - 1) * units->size)) return "a position lies outside of the table of angles";
    return 0;
}

static const char *decode_step(const DecodeStep *of) {
    const BandRange *bands = band_ranges_of(of);
    if (!inside(of->row, of->rows)) return "there are no ranges and tables for the token";
    if ((of->kept[0] || of->kept[1] || of->kept[2]) && !inside(of->tail, of->tails))
        return "there is no room to keep its inputs";
    if (of->scoring.theta_k && !inside(of->at, of->choice.room)) return "there is no room for its entry";
    for (int64_t n = 0; n < of->rotations; n++) {
        if (!inside(of->at, of->stored[n].keys.count)) return "there is no room for its key";
        const Codes *codes = &of->stored[n].codes;
        if (codes->codes && (of->at < codes->count || of->values.count < codes->count)) return "its key would be one in int8";
        if (of->row >= of->stored[n].cos_sin.rows) return "there are no angles for its key";
    }
    for (const BandRange *band = bands; band < bands + of->bands; band++) {
        if (!inside(band->rotation, of->rotations)) return "a band reads a rotation that is not stored";
        if (of->row >= band->cos_sin.rows) return "there are no angles for its query";
        const char *wrong = ranges(band->low + of->row, band->high + of->row, 1, of->at + 1);
        if (wrong) return wrong;
    }
    for (int64_t d = 0; of->order && d < of->job.dk; d++)
        if (!inside(of->order[d], of->job.dk)) return "a channel lies outside of a head";
    return of->stop ? token_choice(of) : 0;
}

const char *longspan_check_decode(const DecodeRows *all) {
    for (int64_t n = 0; n < all->count; n++) {
        const char *wrong = decode_step(step_at(all, n));
        if (wrong) return wrong;
    }
    return 0;
}
