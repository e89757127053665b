/* Thresholds: levels of features and tables of left sets. thresholds.h has the contract. */
#include "thresholds.h"
#include "clones.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef TW_WIDE
#include <immintrin.h>
#endif

#define ZERO_LIMIT 1.0000000180025095e-35 /* (double)1e-35f: LightGBM treats smaller magnitudes as 0 */

/* Return the range of levels; a negative `low` means that a level is unknown, so nothing is decided. */
static inline tw_range range_of(int32_t low, int32_t high)
{
    return low < 0 ? (tw_range){0, TW_UNKNOWN} : (tw_range){(uint16_t)low, (uint16_t)high};
}

/* Return how many values a column has. */
static int32_t n_values(const tw_column *column)
{
    return column->classes ? column->classes->n_classes : 1;
}

/* Number the partitions that features have, in order of occurrence, and write the first feature of each into
 * `first_with` (features). Return how many there are. */
static int32_t number_partitions(const tw_forest *f, const tw_column *columns, int32_t *partition, int32_t *first_with)
{
    int32_t count = 0;
    for (int32_t i = 0; i < f->n_features; i++) {
        int32_t p = 0;
        while (p < count && columns[first_with[p]].classes != columns[i].classes)
            p++;
        if (columns[i].classes && p == count)
            first_with[count++] = i;
        partition[i] = p;
    }
    return count;
}

/* Allocate the present classes of each partition and the left sets of each feature. Return 0, or -1 when out of
 * memory. */
static int allocate(tw_thresholds *th)
{
    const int32_t features = th->forest->n_features;
    int32_t *first_with = malloc(features * sizeof *first_with);
    int64_t words = 0;
    for (int32_t i = 0; i < features; i++)
        words += th->columns[i].classes ? th->forest->levels[i].count * TW_MAX_WORDS : 0;
    th->left_sets = malloc((words + TW_MAX_WORDS) * sizeof *th->left_sets);
    th->n_partitions = first_with ? number_partitions(th->forest, th->columns, th->partition, first_with) : 0;
    th->present = calloc(th->n_partitions + 1, sizeof *th->present);
    int failed = !first_with || !th->left_sets || !th->present;
    for (int32_t p = 0; p < th->n_partitions && !failed; p++) {
        th->present[p].number = malloc(TW_BATCH * sizeof *th->present[p].number);
        th->present[p].members = malloc((size_t)TW_BATCH * TW_MAX_WORDS * sizeof *th->present[p].members);
        failed = !th->present[p].number || !th->present[p].members;
    }
    free(first_with);
    return failed ? -1 : 0;
}

tw_thresholds *tw_thresholds_new(const tw_forest *f, tw_column *columns)
{
    tw_thresholds *th = calloc(1, sizeof *th);
    const size_t features = f->n_features;
    size_t values = 0;
    if (!th)
        return NULL;
    for (size_t i = 0; i < features; i++)
        values += n_values(&columns[i]);
    th->forest = f, th->columns = columns;
    th->of_class = (int16_t **)malloc(features * sizeof *th->of_class);
    th->pool_range = malloc((features + 1) * sizeof *th->pool_range);
    th->range = malloc((features + 1) * sizeof *th->range);
    th->partition = malloc(features * sizeof *th->partition);
    th->left_begin = malloc(features * sizeof *th->left_begin);
    th->deferred = calloc(features, 1);
    th->levels = malloc((values + 1) * sizeof *th->levels);
    for (size_t i = 0, begin = 0; th->of_class && th->levels && i < features; i++) {
        th->of_class[i] = th->levels + begin;
        begin += n_values(&columns[i]);
    }
    if (!th->of_class || !th->pool_range || !th->range || !th->partition || !th->left_begin || !th->deferred ||
        !th->levels || allocate(th)) {
        tw_thresholds_free(th);
        return NULL;
    }
    th->pool_range[features] = th->range[features] = range_of(-1, 0);
    return th;
}

void tw_thresholds_free(tw_thresholds *th)
{
    if (th) {
        for (int32_t p = 0; th->present && p < th->n_partitions; p++) {
            free(th->present[p].number);
            free(th->present[p].members);
        }
        free(th->levels);
        free((void *)th->of_class);
        free(th->pool_range);
        free(th->range);
        free(th->partition);
        free(th->left_begin);
        free(th->deferred);
        free(th->present);
        free(th->left_sets);
        free(th);
    }
}

/* Define a function that writes the levels of `n` classes into `level` and returns their range; `number` NULL: of all
 * classes. It exists twice, because AVX-512 compares a block in a few instructions. */
#define FIND(NAME, LEVEL_OF, ATTRIBUTE)                                                                                \
    ATTRIBUTE static tw_range NAME(const tw_thresholds *th, int32_t feature, const int32_t *number, int32_t n,         \
                                   int16_t *level)                                                                     \
    {                                                                                                                  \
        const double *value = th->columns[feature].value;                                                              \
        const int32_t may_miss = th->forest->levels[feature].may_miss;                                                 \
        int32_t low = INT16_MAX, high = -1;                                                                            \
        for (int32_t i = 0; i < n; i++) {                                                                              \
            const double x = value[number ? number[i] : i];                                                            \
            const int32_t found = may_miss || isnan(x) ? -1 : LEVEL_OF(th->forest, feature, x);                        \
            level[i] = (int16_t)found;                                                                                 \
            low = found < low ? found : low;                                                                           \
            high = found > high ? found : high;                                                                        \
        }                                                                                                              \
        return range_of(low, high);                                                                                    \
    }

FIND(find_portable, tw_level_of, TW_CLONES)
#ifdef TW_WIDE
/* Return how many thresholds of one block are below x. */
TW_WIDE static inline int32_t count_below_wide(const double *thresholds, __m512d x)
{
    const __mmask8 a = _mm512_cmp_pd_mask(_mm512_loadu_pd(thresholds), x, _CMP_LT_OQ);
    const __mmask8 b = _mm512_cmp_pd_mask(_mm512_loadu_pd(thresholds + 8), x, _CMP_LT_OQ);
    return __builtin_popcount((uint32_t)a | (uint32_t)b << 8);
}

/* Return the level of x, as tw_level_of does. */
TW_WIDE static inline int32_t level_of_wide(const tw_forest *f, int32_t feature, double x)
{
    const tw_levels *levels = &f->levels[feature];
    const double *thresholds = f->thresholds + levels->first, *last = thresholds + levels->blocks * TW_BLOCK;
    const __m512d xs = _mm512_set1_pd(x);
    int32_t block = 0;
    for (int32_t i = 0; i < levels->blocks; i += TW_BLOCK)
        block += count_below_wide(last + i, xs);
    return block * TW_BLOCK + count_below_wide(thresholds + block * TW_BLOCK, xs);
}

FIND(find_wide, level_of_wide, TW_WIDE)
#endif

/* Find levels with the widest vectors that this processor has. */
static tw_range find_levels(const tw_thresholds *th, int32_t feature, const int32_t *number, int32_t n, int16_t *level)
{
#ifdef TW_WIDE
    if (__builtin_cpu_supports("x86-64-v4"))
        return find_wide(th, feature, number, n, level);
#endif
    return find_portable(th, feature, number, n, level);
}

void tw_thresholds_find_levels(tw_thresholds *th, int32_t feature)
{
    th->pool_range[feature] = find_levels(th, feature, NULL, n_values(&th->columns[feature]), th->of_class[feature]);
    th->deferred[feature] = 0;
}

void tw_thresholds_defer_levels(tw_thresholds *th, int32_t feature)
{
    if (!th->columns[feature].classes)
        tw_thresholds_find_levels(th, feature);
    else
        th->pool_range[feature] = range_of(-1, 0), th->deferred[feature] = 1;
}

void tw_thresholds_cover_pool(tw_thresholds *th)
{
    memcpy(th->range, th->pool_range, th->forest->n_features * sizeof *th->range);
    th->count = 0;
}

/* List the classes that occur in the batch, and their kernels. */
static inline __attribute__((always_inline)) void
list_present_classes(const tw_classes *classes, const tw_thresholds *th, int32_t words, tw_present_classes *to)
{
    uint64_t *members = to->members;
    memset(members, 0, (size_t)classes->n_classes * words * sizeof *members);
    for (int32_t i = 0; i < th->count; i++)
        members[classes->of_kernel[th->kernels[i]] * words + i / 64] |= 1ULL << i % 64;
    int32_t found = 0;
    for (int32_t i = 0; i < classes->n_classes; i++) {
        uint64_t any = 0;
        for (int32_t w = 0; w < words; w++)
            any |= members[found * words + w] = members[i * words + w];
        to->number[found] = i;
        found += any != 0;
    }
    to->count = found;
}

/* Copy the levels of `count` classes into `level` and return their range. */
static inline __attribute__((always_inline)) tw_range look_up_levels(const int16_t *of_class, const int32_t *number,
                                                                     int32_t count, int16_t *level)
{
    int16_t low = INT16_MAX, high = -1;
    for (int32_t i = 0; i < count; i++)
        level[i] = of_class[number[i]];
    for (int32_t i = 0; i < count; i++) {
        low = level[i] < low ? level[i] : low;
        high = level[i] > high ? level[i] : high;
    }
    return range_of(low, high);
}

/* Fill the table of left sets of a feature's range. `members` has the kernels of each level; if NULL, level i
 * belongs to kernel i of the batch. */
static inline __attribute__((always_inline)) void write_left_sets(tw_range range, const int16_t *level,
                                                                  const uint64_t *members, int32_t count, int32_t words,
                                                                  uint64_t *left)
{
    const int32_t n = (range.high - range.low) * words;
    memset(left, 0, (n + words) * sizeof *left);
    for (int32_t i = 0; i < count; i++) {
        uint64_t *to = left + (ptrdiff_t)(level[i] - range.low) * words;
        if (!members)
            to[i / 64] |= 1ULL << i % 64;
        else
            for (int32_t w = 0; w < words; w++)
                to[w] |= members[i * words + w];
    }
    uint64_t so_far[TW_MAX_WORDS] = {0};
    for (int32_t i = 0; i < n; i += words)
        for (int32_t w = 0; w < words; w++)
            left[i + w] = so_far[w] |= left[i + w];
}

/* Set ranges and left sets for the batch. `words` is a constant after inlining, so that loops unroll. */
static inline __attribute__((always_inline)) void set_batch(tw_thresholds *th, int32_t words)
{
    int32_t listed = 0, written = 0;
    int16_t level[TW_BATCH];
    for (int32_t i = 0; i < th->forest->n_features; i++) {
        const tw_classes *classes = th->columns[i].classes;
        th->range[i] = th->pool_range[i];
        if (!classes)
            continue;
        tw_present_classes *present = &th->present[th->partition[i]];
        const int32_t few = classes->n_classes < th->count;
        if (th->partition[i] == listed) { /* partitions are numbered in order of occurrence */
            listed++;
            if (few)
                list_present_classes(classes, th, words, present);
            else
                for (int32_t k = 0; k < th->count; k++)
                    present->number[k] = classes->of_kernel[th->kernels[k]];
        }
        if (th->range[i].low == th->range[i].high)
            continue;
        const int32_t count = few ? present->count : th->count;
        th->range[i] = th->deferred[i] ? find_levels(th, i, present->number, count, level)
                                       : look_up_levels(th->of_class[i], present->number, count, level);
        if (th->range[i].low == th->range[i].high || tw_thresholds_unknown(th, i))
            continue;
        th->left_begin[i] = written;
        if (few)
            write_left_sets(th->range[i], level, present->members, count, words, th->left_sets + written);
        else
            write_left_sets(th->range[i], level, NULL, count, words, th->left_sets + written);
        written += (th->range[i].high - th->range[i].low) * words;
    }
}

TW_CLONES void tw_thresholds_set_batch(tw_thresholds *th, const int32_t *kernels, int32_t count)
{
    th->kernels = kernels, th->count = count;
    th->words = count <= 64 ? 1 : count <= 128 ? 2 : TW_MAX_WORDS;
    if (th->words == 1)
        set_batch(th, 1);
    else if (th->words == 2)
        set_batch(th, 2);
    else
        set_batch(th, TW_MAX_WORDS);
}

/* Return 1 if a split sends x left, by LightGBM's rules for missing values. */
static int goes_left(double x, double threshold, int missing)
{
    int kind = missing & 3;
    if (isnan(x) && kind != TW_MISSING_NAN)
        x = 0.0;
    if ((kind == TW_MISSING_NAN && isnan(x)) || (kind == TW_MISSING_ZERO && fabs(x) <= ZERO_LIMIT))
        return missing >> 2;
    return x <= threshold;
}

void tw_thresholds_evaluate(const tw_thresholds *th, int32_t at, uint64_t *sent)
{
    const tw_forest *f = th->forest;
    const tw_node node = f->node[at];
    const tw_column *column = &th->columns[tw_node_feature(node)];
    const double threshold = f->thresholds[f->levels[tw_node_feature(node)].first + tw_node_level(node)];
    memset(sent, 0, th->words * sizeof *sent);
    for (int32_t i = 0; i < th->count; i++) {
        const double x = column->value[column->classes ? column->classes->of_kernel[th->kernels[i]] : 0];
        sent[i / 64] |= (uint64_t)goes_left(x, threshold, f->missing[at]) << i % 64;
    }
}
