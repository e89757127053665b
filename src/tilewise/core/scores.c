#include "walk.h"
#include "clones.h"

#include <stdlib.h>
#include <string.h>

void tw_values_of(const tw_sets *leaves, const int32_t *active, int32_t kernel, double *values)
{
    const uint64_t *word = leaves->mask;
    while (*active++ != kernel >> 6)
        word++;
    for (int32_t i = 0; i < leaves->count; i++, word += leaves->words)
        if (*word >> (kernel & 63) & 1)
            values[leaves->tree[i]] = leaves->value[i];
}

TW_CLONES int tw_sum_leaves(const tw_sets *leaves, const int32_t *active, int32_t n_trees, double *scores)
{
    int32_t *begin = calloc(n_trees + 2, sizeof *begin), *order = malloc((leaves->count + 1) * sizeof *order);
    if (begin && order) {
        for (int32_t i = 0; i < leaves->count; i++)
            begin[leaves->tree[i] + 2]++;
        for (int32_t t = 0; t < n_trees; t++)
            begin[t + 2] += begin[t + 1];
        for (int32_t i = 0; i < leaves->count; i++)
            order[begin[leaves->tree[i] + 1]++] = i;
        for (int32_t w = 0; w < leaves->words; w++)
            memset(scores + 64 * active[w], 0, 64 * sizeof *scores);
        for (int32_t i = 0; i < leaves->count; i++) { /* tree by tree; a kernel is in one leaf of each */
            const uint64_t *word = leaves->mask + (size_t)order[i] * leaves->words;
            for (int32_t w = 0; w < leaves->words; w++)
                for (uint64_t mask = word[w]; mask; mask &= mask - 1)
                    scores[64 * active[w] + __builtin_ctzll(mask)] += leaves->value[order[i]];
        }
    }
    int failed = !begin || !order;
    free(begin);
    free(order);
    return failed ? -1 : 0;
}

TW_CLONES void tw_add_more(const tw_sets *leaves, const int32_t *active, const double *values, double *more)
{
    for (int32_t i = 0; i < leaves->count; i++) {
        const double by = leaves->value[i] - values[leaves->tree[i]];
        if (by == 0.0)
            continue;
        for (int32_t w = 0; w < leaves->words; w++)
            for (uint64_t mask = leaves->mask[(size_t)i * leaves->words + w]; mask; mask &= mask - 1)
                more[64 * active[w] + __builtin_ctzll(mask)] += by;
    }
}
