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

/* The sums of some kernels at a time stay in a register. Vectors wider than the processor's are taken apart badly, so there
 * are two widths. */
#define ADD_LEAVES(NAME, LANES, ATTRIBUTE)                                                                             \
    ATTRIBUTE static void NAME(const tw_sets *leaves, int32_t count, double *sums)                                     \
    {                                                                                                                  \
        typedef double some __attribute__((vector_size(8 * LANES), aligned(8)));                                       \
        typedef int64_t some_longs __attribute__((vector_size(8 * LANES)));                                            \
        typedef int32_t some_ints __attribute__((vector_size(4 * LANES)));                                             \
        typedef int16_t some_lanes __attribute__((vector_size(2 * LANES), aligned(2)));                                \
        for (int32_t k = 0; k < count; k += LANES) {                                                                   \
            some sum = *(some *)(sums + k);                                                                            \
            for (int32_t i = 0; i < leaves->count; i++) {                                                              \
                const some_lanes *lanes = (const some_lanes *)&leaves->set[i] + k % TW_ROW / LANES;                    \
                const some_ints ints = __builtin_convertvector(*lanes, some_ints);                                     \
                const some_longs has = (__builtin_convertvector(ints, some_longs) & 1ll << k / TW_ROW) != 0;           \
                sum += (some)((some_longs)(leaves->value[i] - (some){0}) & has);                                       \
            }                                                                                                          \
            *(some *)(sums + k) = sum;                                                                                 \
        }                                                                                                              \
    }

ADD_LEAVES(add_by_fours, 4, TW_CLONES)
#ifdef TW_WIDE
ADD_LEAVES(add_by_eights, 8, TW_WIDE)
#endif

void tw_add_leaves(const tw_sets *leaves, int32_t count, double *sums)
{
#ifdef TW_WIDE
    if (__builtin_cpu_supports("x86-64-v4")) {
        add_by_eights(leaves, count, sums);
        return;
    }
#endif
    add_by_fours(leaves, count, sums);
}
