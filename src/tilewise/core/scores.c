#include "walk.h"
#include "clones.h"

#include <stdlib.h>
#include <string.h>

int tw_sum_leaves(const tw_sets *leaves, int32_t n_trees, double *scores)
{
    int32_t *begin = calloc(n_trees + 2, sizeof *begin), *order = malloc((leaves->count + 1) * sizeof *order);
    if (begin && order) {
        for (int32_t i = 0; i < leaves->count; i++)
            begin[leaves->tree[i] + 2]++;
        for (int32_t t = 0; t < n_trees; t++)
            begin[t + 2] += begin[t + 1];
        for (int32_t i = 0; i < leaves->count; i++)
            order[begin[leaves->tree[i] + 1]++] = i;
        memset(scores, 0, TW_TAKEN * sizeof *scores);
        for (int32_t i = 0; i < leaves->count; i++) { /* tree by tree; a kernel is in one leaf of each */
            const tw_words words = (tw_words)leaves->set[order[i]];
            for (int32_t w = 0; w < 4; w++)
                for (uint64_t mask = words[w]; mask; mask &= mask - 1) {
                    const int32_t bit = 64 * w + __builtin_ctzll(mask);
                    scores[bit % TW_ROW * TW_ROW + bit / TW_ROW] += leaves->value[order[i]];
                }
        }
    }
    int failed = !begin || !order;
    free(begin);
    free(order);
    return failed ? -1 : 0;
}

typedef double four __attribute__((vector_size(32), aligned(8)));
typedef int64_t four_longs __attribute__((vector_size(32)));
typedef int32_t four_ints __attribute__((vector_size(16)));
typedef int16_t four_lanes __attribute__((vector_size(8), aligned(2)));

TW_CLONES void tw_add_leaves(const tw_sets *leaves, int32_t count, double *sums)
{
    for (int32_t k = 0; k < count; k += 4) { /* the sums of four kernels stay in a register */
        four sum = *(four *)(sums + k);
        for (int32_t i = 0; i < leaves->count; i++) {
            const four_lanes *lanes = (const four_lanes *)&leaves->set[i] + k / 4 % 4;
            const four_longs wide = __builtin_convertvector(__builtin_convertvector(*lanes, four_ints), four_longs);
            const four_longs has = (wide & 1ll << k / TW_ROW) != 0;
            sum += (four)((four_longs)(leaves->value[i] - (four){0}) & has);
        }
        *(four *)(sums + k) = sum;
    }
}
