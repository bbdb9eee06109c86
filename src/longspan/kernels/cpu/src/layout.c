/* The sizes of the structures, which Python compares with what it packs. */

#include "structs.h"

typedef struct {
    const char *name;
    int64_t bytes;
} Size;

#define SIZE(type) {#type, sizeof(type)}

const Size longspan_sizes[] = {
    SIZE(Job),       SIZE(Keys),            SIZE(Table),  SIZE(Banded),      SIZE(Units),       SIZE(Tokens),
    SIZE(Products),  SIZE(Representations), SIZE(TopK),   SIZE(TokenScores), SIZE(Rotation),    SIZE(BandRange),
    SIZE(Choice),    SIZE(QueryForScoring), SIZE(ChosenUnits), SIZE(DecodeStep), {0, 0},
};
