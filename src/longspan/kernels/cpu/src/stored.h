/* Stored numbers as fp32, a vector at a time. Included for each size of vector: V of fp32, W of words, H of halves of
   words; NAME(x) is x for eight numbers and x16 for sixteen. */

#ifndef __F16C__
INLINE V NAME(of_fp16)(H stored) {
    W wide = __builtin_convertvector(stored, W);
    /* The exponent is moved to fp32's by a product, which makes subnormals right too; infinity, NaN have their own. */
    W rest = wide & 0x7fff, infinite = (W)(rest >= 0x7c00);
    V x = (V)(rest << 13) * 0x1p112f;
    return (V)((infinite & (rest << 13 | 0x7f800000)) | (~infinite & (W)x) | (wide & 0x8000) << 16);
}
#endif

INLINE V NAME(load)(const void *from, const int kind) {
    if (kind == FP32) {
        V x;
        memcpy(&x, from, sizeof x);
        return x;
    }
    H stored;
    memcpy(&stored, from, sizeof stored);
    if (kind == BF16) return (V)(__builtin_convertvector(stored, W) << 16);
    return NAME(of_fp16)(stored);
}

/* Two vectors of stored numbers. Of bf16 those at even and at odd places: a shift and a mask widen them where they lie,
   which is half the work of bringing them into order. `lane_order` puts what they meet into the same order. */
INLINE void NAME(load_pair)(const void *from, const int kind, V *first, V *second) {
    if (kind == BF16) {
        W both;
        memcpy(&both, from, sizeof both);
        *first = (V)(both << 16), *second = (V)(both & 0xffff0000);
    } else {
        const char *next = (const char *)from + sizeof(V) / sizeof(float) * (size_t)bytes_of(kind);
        *first = NAME(load)(from, kind), *second = NAME(load)(next, kind);
    }
}

INLINE void NAME(store)(float *to, V x) { memcpy(to, &x, sizeof x); }
