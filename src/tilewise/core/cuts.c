#include "cuts.h"
#include "clones.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef TW_WIDE
#include <immintrin.h>
#endif

#define ZERO 1.0000000180025095e-35 /* (double)1e-35f: LightGBM takes anything nearer to 0 for 0 */

/* The range of levels; one below 0 leaves all undecided. */
static inline tw_range range_of(int32_t low, int32_t high)
{
    return low < 0 ? (tw_range){0, TW_UNDECIDED} : (tw_range){(uint16_t)low, (uint16_t)high};
}

static int32_t n_values(const tw_column *column)
{
    return column->classes ? column->classes->n_classes : 1;
}

/* Number the partitions that features have; how many. `first_with` (features): the first feature of each. */
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

/* Room for the classes of each partition that can be there, and for the sets of each feature. 0, or -1. */
static int make_room(tw_cuts *c)
{
    const int32_t features = c->forest->n_features;
    int32_t *first_with = malloc(features * sizeof *first_with);
    int64_t words = 0;
    for (int32_t i = 0; i < features; i++)
        words += c->columns[i].classes ? c->forest->levels[i].count * TW_MOST_WORDS : 0;
    c->left = malloc((words + TW_MOST_WORDS) * sizeof *c->left);
    c->n_partitions = first_with ? number_partitions(c->forest, c->columns, c->partition, first_with) : 0;
    c->present = calloc(c->n_partitions + 1, sizeof *c->present);
    int failed = !first_with || !c->left || !c->present;
    for (int32_t p = 0; p < c->n_partitions && !failed; p++) {
        c->present[p].number = malloc(TW_TAKEN * sizeof *c->present[p].number);
        c->present[p].members = malloc(TW_TAKEN * TW_MOST_WORDS * sizeof *c->present[p].members);
        failed = !c->present[p].number || !c->present[p].members;
    }
    free(first_with);
    return failed ? -1 : 0;
}

tw_cuts *tw_cuts_new(const tw_forest *f, tw_column *columns)
{
    tw_cuts *c = calloc(1, sizeof *c);
    const size_t features = f->n_features;
    size_t values = 0;
    if (!c)
        return NULL;
    for (size_t i = 0; i < features; i++)
        values += n_values(&columns[i]);
    c->forest = f, c->columns = columns;
    c->of_class = malloc(features * sizeof *c->of_class);
    c->whole = malloc((features + 1) * sizeof *c->whole);
    c->range = malloc((features + 1) * sizeof *c->range);
    c->partition = malloc(features * sizeof *c->partition);
    c->first = malloc(features * sizeof *c->first);
    c->later = calloc(features, 1);
    int16_t *level = malloc(values * sizeof *level);
    for (size_t i = 0; c->of_class && i < features; i++) {
        c->of_class[i] = level;
        level += level ? n_values(&columns[i]) : 0;
    }
    if (!c->of_class || !c->whole || !c->range || !c->partition || !c->first || !c->later || !level || make_room(c)) {
        tw_cuts_free(c);
        return NULL;
    }
    c->whole[features] = c->range[features] = range_of(-1, 0);
    return c;
}

void tw_cuts_free(tw_cuts *c)
{
    if (c) {
        for (int32_t p = 0; c->present && p < c->n_partitions; p++) {
            free(c->present[p].number);
            free(c->present[p].members);
        }
        free(c->of_class ? c->of_class[0] : NULL);
        free(c->of_class);
        free(c->whole);
        free(c->range);
        free(c->partition);
        free(c->first);
        free(c->later);
        free(c->present);
        free(c->left);
        free(c);
    }
}

/* The levels of `n` classes, of all where `number` is NULL, and their range. Twice, as the comparisons of a block with a
 * value are a few instructions where there are masks. */
#define FIND(NAME, LEVEL_OF, ATTRIBUTE)                                                                                \
    ATTRIBUTE static tw_range NAME(const tw_cuts *c, int32_t feature, const int32_t *number, int32_t n, int16_t *level) \
    {                                                                                                                  \
        const double *value = c->columns[feature].value;                                                               \
        const int32_t may_miss = c->forest->levels[feature].may_miss;                                                  \
        int32_t low = INT16_MAX, high = -1;                                                                            \
        for (int32_t i = 0; i < n; i++) {                                                                              \
            const double x = value[number ? number[i] : i];                                                            \
            const int32_t found = may_miss || isnan(x) ? -1 : LEVEL_OF(c->forest, feature, x);                         \
            level[i] = (int16_t)found;                                                                                 \
            low = found < low ? found : low;                                                                           \
            high = found > high ? found : high;                                                                        \
        }                                                                                                              \
        return range_of(low, high);                                                                                    \
    }

FIND(find_each, tw_level_of, TW_CLONES)
#ifdef TW_WIDE
TW_WIDE static inline int32_t below(const double *thresholds, __m512d x)
{
    const __mmask8 a = _mm512_cmp_pd_mask(_mm512_loadu_pd(thresholds), x, _CMP_LT_OQ);
    const __mmask8 b = _mm512_cmp_pd_mask(_mm512_loadu_pd(thresholds + 8), x, _CMP_LT_OQ);
    return __builtin_popcount((uint32_t)a | (uint32_t)b << 8);
}

TW_WIDE static inline int32_t level_of(const tw_forest *f, int32_t feature, double x)
{
    const tw_levels *levels = &f->levels[feature];
    const double *thresholds = f->thresholds + levels->first, *last = thresholds + levels->blocks * TW_BLOCK;
    const __m512d xs = _mm512_set1_pd(x);
    int32_t block = 0;
    for (int32_t i = 0; i < levels->blocks; i += TW_BLOCK)
        block += below(last + i, xs);
    return block * TW_BLOCK + below(thresholds + block * TW_BLOCK, xs);
}

FIND(find_wide, level_of, TW_WIDE)
#endif

static tw_range find(const tw_cuts *c, int32_t feature, const int32_t *number, int32_t n, int16_t *level)
{
#ifdef TW_WIDE
    if (__builtin_cpu_supports("x86-64-v4"))
        return find_wide(c, feature, number, n, level);
#endif
    return find_each(c, feature, number, n, level);
}

void tw_cuts_find(tw_cuts *c, int32_t feature)
{
    c->whole[feature] = find(c, feature, NULL, n_values(&c->columns[feature]), c->of_class[feature]);
    c->later[feature] = 0;
}

void tw_cuts_find_later(tw_cuts *c, int32_t feature)
{
    if (!c->columns[feature].classes)
        tw_cuts_find(c, feature);
    else
        c->whole[feature] = range_of(-1, 0), c->later[feature] = 1;
}

void tw_cuts_take_all(tw_cuts *c)
{
    memcpy(c->range, c->whole, c->forest->n_features * sizeof *c->range);
    c->count = 0;
}

/* List the classes of the kernels taken, and their kernels. */
static inline __attribute__((always_inline)) void list_present(const tw_classes *classes, const tw_cuts *c, int32_t words,
                                                               tw_present *to)
{
    uint64_t *members = to->members;
    memset(members, 0, (size_t)classes->n_classes * words * sizeof *members);
    for (int32_t i = 0; i < c->count; i++)
        members[classes->of_kernel[c->kernels[i]] * words + i / 64] |= 1ull << i % 64;
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

/* The levels of `count` classes, and their range. */
static inline __attribute__((always_inline)) tw_range look_up(const int16_t *of_class, const int32_t *number, int32_t count,
                                                              int16_t *level)
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

/* Write down what each threshold in a feature's range sends left: `members` of each level; NULL: the i-th kernel. */
static inline __attribute__((always_inline)) void write_left(tw_range range, const int16_t *level, const uint64_t *members,
                                                             int32_t count, int32_t words, uint64_t *left)
{
    const int32_t n = (range.high - range.low) * words;
    memset(left, 0, (n + words) * sizeof *left);
    for (int32_t i = 0; i < count; i++) {
        uint64_t *to = left + (level[i] - range.low) * words;
        if (!members)
            to[i / 64] |= 1ull << i % 64;
        else
            for (int32_t w = 0; w < words; w++)
                to[w] |= members[i * words + w];
    }
    uint64_t so_far[TW_MOST_WORDS] = {0};
    for (int32_t i = 0; i < n; i += words)
        for (int32_t w = 0; w < words; w++)
            left[i + w] = so_far[w] |= left[i + w];
}

static inline __attribute__((always_inline)) void take(tw_cuts *c, int32_t words)
{
    int32_t listed = 0, written = 0;
    int16_t level[TW_TAKEN];
    for (int32_t i = 0; i < c->forest->n_features; i++) {
        const tw_classes *classes = c->columns[i].classes;
        c->range[i] = c->whole[i];
        if (!classes)
            continue;
        tw_present *present = &c->present[c->partition[i]];
        const int32_t few = classes->n_classes < c->count;
        if (c->partition[i] == listed) { /* they are numbered as they come */
            listed++;
            if (few)
                list_present(classes, c, words, present);
            else
                for (int32_t k = 0; k < c->count; k++)
                    present->number[k] = classes->of_kernel[c->kernels[k]];
        }
        if (c->range[i].low == c->range[i].high)
            continue;
        const int32_t count = few ? present->count : c->count;
        c->range[i] = c->later[i] ? find(c, i, present->number, count, level)
                                  : look_up(c->of_class[i], present->number, count, level);
        if (c->range[i].low == c->range[i].high || tw_cuts_unsure(c, i))
            continue;
        c->first[i] = written;
        if (few)
            write_left(c->range[i], level, present->members, count, words, c->left + written);
        else
            write_left(c->range[i], level, NULL, count, words, c->left + written);
        written += (c->range[i].high - c->range[i].low) * words;
    }
}

TW_CLONES void tw_cuts_take(tw_cuts *c, const int32_t *kernels, int32_t count)
{
    c->kernels = kernels, c->count = count;
    c->words = count <= 64 ? 1 : count <= 128 ? 2 : TW_MOST_WORDS;
    if (c->words == 1)
        take(c, 1);
    else if (c->words == 2)
        take(c, 2);
    else
        take(c, TW_MOST_WORDS);
}

static int goes_left(double x, double threshold, int missing)
{
    int kind = missing & 3;
    if (isnan(x) && kind != TW_MISSING_NAN)
        x = 0.0;
    if ((kind == TW_MISSING_NAN && isnan(x)) || (kind == TW_MISSING_ZERO && fabs(x) <= ZERO))
        return missing >> 2;
    return x <= threshold;
}

void tw_cuts_ask(const tw_cuts *c, int32_t at, uint64_t *sent)
{
    const tw_forest *f = c->forest;
    const tw_node node = f->node[at];
    const tw_column *column = &c->columns[tw_node_feature(node)];
    const double threshold = f->thresholds[f->levels[tw_node_feature(node)].first + tw_node_level(node)];
    memset(sent, 0, c->words * sizeof *sent);
    for (int32_t i = 0; i < c->count; i++) {
        const double x = column->value[column->classes ? column->classes->of_kernel[c->kernels[i]] : 0];
        sent[i / 64] |= (uint64_t)goes_left(x, threshold, f->missing[at]) << i % 64;
    }
}
