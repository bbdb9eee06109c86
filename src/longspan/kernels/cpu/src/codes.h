/* Stored tokens in int8 are dequantised a block at a time, into memory that a run of keys is then read from. */

#ifndef LONGSPAN_CODES_H
#define LONGSPAN_CODES_H

#include "decode_rows.h"

static void dequantise(char *to, const Codes *of, int64_t b, int64_t h, int64_t token, int kind) {
    const int64_t width = of->width;
    const int8_t *codes = of->codes + b * of->code_step[0] + h * of->code_step[1] + token * width;
    const float *scales = of->scales + b * of->scale_step[0] + h * of->scale_step[1];
    scales += (of->rows ? of->rows[token] : token) * of->scale_width;
    const int alone = of->scale_width == 1;
    if (kind == FP32 && alone)
        for (int64_t d = 0; d < width; d++) ((float *)to)[d] = (float)codes[d] * scales[0];
    else if (kind == FP32)
        for (int64_t d = 0; d < width; d++) ((float *)to)[d] = (float)codes[d] * scales[d];
    else
        for (int64_t d = 0; d < width; d++) store_one(to, d, (float)codes[d] * scales[alone ? 0 : d], kind);
}

/* Attend all rows to `count` tokens of a head: those that `tokens` names, or those from `low` on if that is null.
   `block` has room for BLOCK keys and values. */
static void attend_stored(Softmax *rows, const DecodeStep *of, const Rotation *one, int64_t b, int64_t s,
                          const int64_t *tokens, int64_t low, int64_t count, char *block) {
    const Job *job = &of->job;
    const int64_t coded = one->codes.codes ? one->codes.count : 0, h = s * job->kv_heads / job->sharing;
    const Run all = stored(job, &one->keys, b, s);
    const int64_t size = bytes_of((int)job->kind), key_size = job->dk * size, value_size = job->dv * size;
    int64_t n = 0;
    for (; n < count && (tokens ? coded > 0 : low + n < coded);) {
        Run run = {.keys = block, .values = block + BLOCK * key_size, .key_step = key_size, .value_step = value_size};
        for (; run.count < BLOCK && n < count; n++, run.count++) {
            const int64_t token = tokens ? tokens[n] : low + n;
            char *key = block + run.count * key_size, *value = block + BLOCK * key_size + run.count * value_size;
            if (token < coded) {
                dequantise(key, &one->codes, b, h, token, (int)job->kind);
                dequantise(value, &of->values, b, h, token, (int)job->kind);
            } else {
                memcpy(key, all.keys + token * all.key_step, (size_t)key_size);
                memcpy(value, all.values + token * all.value_step, (size_t)value_size);
            }
        }
        attend(rows, &run);
    }
    if (n == count) return;
    Run run = tokens ? all : part(all, low + n, low + count);
    if (tokens) run.tokens = tokens + n, run.count = count - n;
    attend(rows, &run);
}

#endif
