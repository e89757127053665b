#include "forest.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* How many of the thresholds are below x: what lies at the level of a threshold, or under it, goes left. */
static inline int32_t level_of(const double *thresholds, int32_t depth, double x)
{
    int32_t at = 0;
    for (int32_t half = 1 << depth >> 1; half; half >>= 1)
        at += thresholds[at + half - 1] < x ? half : 0;
    return at;
}

/* Sort each feature's thresholds into `f->thresholds`, without repeats. */
static int number_thresholds(tw_forest *f, int64_t n_nodes, const int64_t *feature, const double *threshold,
                             const int64_t *children)
{
    int64_t *begin = calloc(f->n_features + 2, sizeof *begin), total = 0;
    double *sorted = malloc(n_nodes * sizeof *sorted);
    int failed = !begin || !sorted;
    for (int64_t i = 0; i < n_nodes && !failed; i++)
        begin[feature[i] + 2] += children[2 * i] != i;
    for (int32_t i = 0; i < f->n_features && !failed; i++)
        begin[i + 2] += begin[i + 1];
    for (int64_t i = 0; i < n_nodes && !failed; i++)
        if (children[2 * i] != i)
            sorted[begin[feature[i] + 1]++] = threshold[i];
    for (int32_t i = 0; i < f->n_features && !failed; i++) {
        double *own = sorted + begin[i];
        int64_t count = begin[i + 1] - begin[i], kept = 0;
        qsort(own, count, sizeof *own, ascending);
        for (int64_t j = 0; j < count; j++)
            if (!kept || own[j] != own[kept - 1])
                own[kept++] = own[j];
        int32_t depth = 0;
        while ((1 << depth) - 1 < kept)
            depth++;
        double *more = kept > TW_MOST_LEVEL ? NULL : realloc(f->thresholds, (total + (1 << depth)) * sizeof *more);
        if (!more) {
            failed = 1;
            break;
        }
        f->thresholds = more;
        f->levels[i].first = (int32_t)total, f->levels[i].depth = depth;
        for (int64_t j = 0; j < 1 << depth; j++)
            more[total++] = j < kept ? own[j] : INFINITY;
    }
    f->n_thresholds = (int32_t)total;
    free(begin);
    free(sorted);
    return failed;
}

/* Lay out a tree, of two children the one with more leaves next to its parent: most walks take it. */
static int lay_out(tw_forest *f, int64_t begin, int64_t end, const int64_t *feature, const double *threshold,
                   const int64_t *children, const int8_t *missing, const uint8_t *default_left, const double *value)
{
    const int64_t n = end - begin;
    int64_t top = 0;
    int32_t placed = 0, failed = 2 * n + 1 > TW_MOST_SLOTS; /* slots: n splits and leaves, 2 more a leaf */
    int32_t *size = malloc(3 * n * sizeof *size), *place = size + n, *stack = place + n;
    failed |= !size;
    for (int64_t i = n - 1; i >= 0 && !failed; i--) { /* children come after their parents */
        const int64_t *child = children + 2 * (begin + i);
        int leaf = child[0] == begin + i;
        failed = leaf ? child[1] != begin + i
                      : child[0] <= begin + i || child[1] <= begin + i || child[0] >= end || child[1] >= end;
        size[i] = leaf || failed ? 1 : 1 + size[child[0] - begin] + size[child[1] - begin];
        failed |= size[i] > n;
    }
    if (failed || size[0] != n) {
        free(size);
        return -1;
    }
    memset(place, 255, n * sizeof *place);
    stack[top++] = 0;
    while (top) {
        int32_t i = stack[--top];
        const int64_t *child = children + 2 * (begin + i);
        int leaf = child[0] == begin + i;
        place[i] = placed;
        placed += leaf ? TW_LEAF_SLOTS : 1;
        if (!leaf) {
            int left_first = size[child[1] - begin] >= size[child[0] - begin];
            stack[top++] = (int32_t)(child[!left_first] - begin);
            stack[top++] = (int32_t)(child[left_first] - begin);
        }
    }
    for (int64_t i = 0; i < n; i++)
        failed |= place[i] < 0; /* n visits that leave none out: each node but the root is the child of one */
    for (int64_t i = begin; i < end && !failed; i++) {
        const int32_t here = f->n_slots + place[i - begin];
        if (children[2 * i] == i) {
            f->node[here] = (uint32_t)f->n_features;
            memcpy(&f->node[here + 1], &value[i], sizeof value[i]);
            continue;
        }
        const tw_levels *levels = &f->levels[feature[i]];
        int32_t level = level_of(f->thresholds + levels->first, levels->depth, threshold[i]);
        int32_t right = place[children[2 * i] - begin] - place[i - begin];
        int32_t left = place[children[2 * i + 1] - begin] - place[i - begin];
        f->node[here] = (uint32_t)feature[i] | (uint32_t)level << 8 | (uint32_t)(left == 1) << 18 |
                        (uint32_t)(left == 1 ? right : left) << 19;
        f->missing[here] = (uint8_t)(missing[i] + (default_left[i] ? 4 : 0));
    }
    free(size);
    f->n_slots += placed;
    return failed ? -1 : 0;
}

tw_forest *tw_forest_new(int32_t n_trees, const int64_t *roots, int64_t n_nodes, const int64_t *feature,
                         const double *threshold, const int64_t *children, const int8_t *missing,
                         const uint8_t *default_left, const double *value, int32_t n_features)
{
    tw_forest *f = calloc(1, sizeof *f);
    if (!f || n_trees < 1 || n_nodes < n_trees || n_nodes > INT32_MAX / 4 || n_features < 1 || n_features > TW_MOST_FEATURES)
        goto fail;
    f->n_trees = n_trees, f->n_features = n_features;
    f->roots = malloc(n_trees * sizeof *f->roots);
    f->node = malloc((2 * n_nodes + n_trees) * sizeof *f->node); /* of n nodes (n + 1) / 2 are leaves */
    f->missing = calloc(2 * n_nodes + n_trees, 1);
    f->levels = calloc(n_features, sizeof *f->levels);
    if (!f->roots || !f->node || !f->missing || !f->levels)
        goto fail;
    for (int64_t i = 0; i < n_nodes; i++) {
        if (feature[i] < 0 || feature[i] >= n_features || missing[i] < 0 || missing[i] > TW_MISSING_NAN ||
            isnan(threshold[i]))
            goto fail;
        if (children[2 * i] != i)
            f->levels[feature[i]].may_miss |= missing[i] != TW_MISSING_NONE;
    }
    if (number_thresholds(f, n_nodes, feature, threshold, children))
        goto fail;
    int64_t begin = 0;
    for (int32_t t = 0; t < n_trees; t++) {
        int64_t end = t + 1 < n_trees ? roots[t + 1] : n_nodes;
        if (roots[t] != begin || end <= begin || end > n_nodes)
            goto fail;
        f->roots[t] = f->n_slots;
        if (lay_out(f, begin, end, feature, threshold, children, missing, default_left, value))
            goto fail;
        begin = end;
    }
    return f;
fail:
    tw_forest_free(f);
    return NULL;
}

void tw_forest_free(tw_forest *f)
{
    if (f) {
        free(f->roots);
        free(f->node);
        free(f->missing);
        free(f->levels);
        free(f->thresholds);
        free(f);
    }
}
