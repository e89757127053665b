/* Sums of leaf values per kernel. traverse.h has the contract. Several sums stay in registers at a time, because
 * each addition waits for the one before. */
#include "traverse.h"
#include "clones.h"

#include <stdlib.h>
#include <string.h>
#ifdef TW_WIDE
#include <immintrin.h>
#endif

typedef double four __attribute__((vector_size(32), aligned(8)));
typedef int64_t four_bits __attribute__((vector_size(32)));

/* Add leaf values to sixteen sums at a time, in vectors of four. */
TW_CLONES static void add_portable(const tw_leaf_sets *leaves, int32_t count, double *sums)
{
    const four_bits first = {1, 2, 4, 8};
    for (int32_t k = 0; k < count; k += 16) {
        four *to = (four *)(sums + k), a = to[0], b = to[1], c = to[2], d = to[3];
        const uint64_t *set = leaves->set + k / 64;
        for (int32_t i = 0; i < leaves->count; i++, set += leaves->words) {
            // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): a set has at least one word
            const four_bits has = (int64_t)(*set >> k % 64) - (four_bits){0};
            const four_bits value = (four_bits)(leaves->value[i] - (four){0});
            a += (four)(value & ((has & first) != 0));
            b += (four)(value & ((has & first << 4) != 0));
            c += (four)(value & ((has & first << 8) != 0));
            d += (four)(value & ((has & first << 12) != 0));
        }
        to[0] = a, to[1] = b, to[2] = c, to[3] = d;
    }
}

#ifdef TW_WIDE
/* Add leaf values to 32 sums at a time, in vectors of eight. */
TW_WIDE static void add_wide(const tw_leaf_sets *leaves, int32_t count, double *sums)
{
    for (int32_t k = 0; k < count; k += 32) {
        __m512d a = _mm512_loadu_pd(sums + k), b = _mm512_loadu_pd(sums + k + 8);
        __m512d c = _mm512_loadu_pd(sums + k + 16), d = _mm512_loadu_pd(sums + k + 24);
        const uint8_t *has = (const uint8_t *)leaves->set + k / 8; /* one bit per kernel, the format of vector masks */
        for (int32_t i = 0; i < leaves->count; i++, has += 8 * leaves->words) {
            const __m512d value = _mm512_set1_pd(leaves->value[i]);
            a = _mm512_mask_add_pd(a, has[0], a, value);
            b = _mm512_mask_add_pd(b, has[1], b, value);
            c = _mm512_mask_add_pd(c, has[2], c, value);
            d = _mm512_mask_add_pd(d, has[3], d, value);
        }
        _mm512_storeu_pd(sums + k, a), _mm512_storeu_pd(sums + k + 8, b);
        _mm512_storeu_pd(sums + k + 16, c), _mm512_storeu_pd(sums + k + 24, d);
    }
}
#endif

void tw_add_leaves(const tw_leaf_sets *leaves, int32_t count, double *sums)
{
#ifdef TW_WIDE
    if (__builtin_cpu_supports("x86-64-v4")) {
        add_wide(leaves, count, sums);
        return;
    }
#endif
    add_portable(leaves, count, sums);
}

int tw_sum_leaves(const tw_leaf_sets *leaves, int32_t n_trees, int32_t n, double *scores)
{
    const int32_t count = leaves->count, words = leaves->words;
    tw_leaf_sets sorted = {.count = count, .words = words};
    int32_t *begin = calloc(n_trees + 1, sizeof *begin);
    sorted.value = malloc((count + 1) * sizeof *sorted.value);
    sorted.set = malloc((size_t)(count + 1) * words * sizeof *sorted.set);
    int failed = !begin || !sorted.value || !sorted.set;
    if (!failed) {
        for (int32_t i = 0; i < count; i++)
            begin[leaves->tree[i] + 1]++;
        for (int32_t t = 0; t < n_trees; t++)
            begin[t + 1] += begin[t];
        for (int32_t i = 0; i < count; i++) {
            const int32_t to = begin[leaves->tree[i]]++;
            sorted.value[to] = leaves->value[i];
            for (int32_t w = 0; w < words; w++)
                sorted.set[to * words + w] = leaves->set[i * words + w];
        }
        memset(scores, 0, TW_BATCH * sizeof *scores);
        tw_add_leaves(&sorted, n, scores); /* in the order of the trees: a kernel has one leaf in each */
    }
    free(begin);
    free(sorted.value);
    free(sorted.set);
    return failed ? -1 : 0;
}
