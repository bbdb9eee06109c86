/* The sizes of the structures, for the Python side to compare with what it packs. */

#include "structs.h"

typedef struct {
    const char *name;
    int64_t bytes;
} Size;

#define SIZE(type) {#type, sizeof(type)}

const Size longspan_sizes[] = {
    SIZE(Job),      SIZE(Keys),     SIZE(Table), SIZE(Banded), SIZE(Units), SIZE(Tokens), SIZE(Chunks),      SIZE(Products),
    SIZE(Worth),    SIZE(Best),     SIZE(Pieces), SIZE(Turn),  SIZE(Rotation), SIZE(Seen), SIZE(Ask),        SIZE(Choice),
    SIZE(ChosenUnits), SIZE(Token), {0, 0},
};
