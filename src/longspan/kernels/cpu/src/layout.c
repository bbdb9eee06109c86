/* The structures have the sizes that Python packs, which its build hands over; a compiler may leave gaps between fields. */

#include "structs.h"

#define SAME(type) _Static_assert(sizeof(type) == PACKED_##type, "Python packs " #type " in another size")

#ifdef PACKED_Job /* compiled without Python, there is nothing to compare */
SAME(Job);
SAME(Keys);
SAME(Table);
SAME(Banded);
SAME(Units);
SAME(Tokens);
SAME(Products);
SAME(Representations);
SAME(Matrix);
SAME(Packed);
SAME(TopK);
SAME(TokenScores);
SAME(Codes);
SAME(Rotation);
SAME(BandRange);
SAME(Choice);
SAME(QueryForScoring);
SAME(ChosenUnits);
SAME(DecodeStep);
SAME(DecodeRows);
#endif
