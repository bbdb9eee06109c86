/* The sizes of the structures, for the Python side to compare with what it packs. */

#include "structs.h"

typedef struct {
    const char *name;
    int64_t bytes;
} Size;

#define SIZE(type) {#type, sizeof(type)}

const Size longspan_sizes[] = {
    SIZE(Job),      SIZE(Keys),     SIZE(Table), SIZE(Banded), SIZE(Units), SIZE(Tokens), SIZE(Representations),      SIZE(Products),
    SIZE(TokenScores),    SIZE(TopK),     SIZE(Rotation), SIZE(BandRange), SIZE(QueryForScoring),        SIZE(Choice),
    SIZE(ChosenUnits), SIZE(DecodeStep), {0, 0},
};
