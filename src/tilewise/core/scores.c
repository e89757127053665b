#include "forest.h"
#include "clones.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

double tw_score_of(const tw_sets *leaves, int32_t bit, int32_t n_trees, double *values)
{
    const uint64_t *word = leaves->mask + (bit >> 6);
    for (int32_t i = 0; i < leaves->count; i++, word += leaves->words)
        if (*word >> (bit & 63) & 1)
            values[leaves->tree[i]] = leaves->value[i];
    double sum = 0.0;
    for (int32_t t = 0; t < n_trees; t++)
        sum += values[t];
    return sum;
}

int tw_score_all(const tw_sets *leaves, int32_t n, int32_t n_trees, double *scores)
{
    int32_t *begin = calloc(n_trees + 2, sizeof *begin), *order = malloc((leaves->count + 1) * sizeof *order);
    if (begin && order) {
        for (int32_t i = 0; i < leaves->count; i++)
            begin[leaves->tree[i] + 2]++;
        for (int32_t t = 0; t < n_trees; t++)
            begin[t + 2] += begin[t + 1];
        for (int32_t i = 0; i < leaves->count; i++)
            order[begin[leaves->tree[i] + 1]++] = i;
        memset(scores, 0, n * sizeof *scores);
        for (int32_t i = 0; i < leaves->count; i++) { /* tree by tree; a kernel is in one leaf of each */
            double value = leaves->value[order[i]];
            for (int32_t w = 0; w < leaves->words; w++)
                for (uint64_t mask = leaves->mask[(size_t)order[i] * leaves->words + w]; mask; mask &= mask - 1)
                    scores[64 * w + __builtin_ctzll(mask)] += value;
        }
    }
    int failed = !begin || !order;
    free(begin);
    free(order);
    return failed ? -1 : 0;
}

tw_spread tw_spread_of(const tw_sets *leaves, int32_t n_trees, double *values, double *low, double *high)
{
    tw_spread all = {0.0, 0.0};
    const int32_t words = leaves->words;
    for (int32_t t = 0; t < n_trees; t++)
        low[t] = INFINITY, high[t] = -INFINITY;
    for (int32_t i = 0; i < leaves->count; i++) {
        int32_t tree = leaves->tree[i];
        double x = leaves->value[i];
        low[tree] = x < low[tree] ? x : low[tree];
        high[tree] = x > high[tree] ? x : high[tree];
        values[tree] = leaves->mask[(size_t)i * words] & 1 ? x : values[tree];
    }
    for (int32_t t = 0; t < n_trees; t++) {
        all.most += high[t] - values[t];
        all.least += low[t] - values[t];
    }
    return all;
}

static const uint32_t BIT[8] = {1, 2, 4, 8, 16, 32, 64, 128};

TW_CLONES void tw_compare(const tw_sets *leaves, int32_t n, const double *values, float *more)
{
    const int32_t words = leaves->words, bytes = (n + 7) / 8;
    memset(more, 0, 64 * words * sizeof *more);
    for (int32_t i = 0; i < leaves->count; i++) {
        const uint64_t *mask = leaves->mask + (size_t)i * words;
        float value = (float)(leaves->value[i] - values[leaves->tree[i]]);
        uint32_t bits;
        if (mask[0] & 1) /* the leaves of bit 0 itself */
            continue;
        memcpy(&bits, &value, sizeof bits);
        for (int32_t byte = 0; byte < bytes; byte++) {
            if (words > 4 && !mask[byte >> 3]) { /* sets of a large pool are mostly empty */
                byte |= 7;
                continue;
            }
            const uint32_t chosen = mask[byte >> 3] >> 8 * (byte & 7) & 255;
            for (int32_t j = 0; j < 8; j++) {
                uint32_t masked = (chosen & BIT[j]) == BIT[j] ? bits : 0;
                float x;
                memcpy(&x, &masked, sizeof x);
                more[8 * byte + j] += x;
            }
        }
    }
}
