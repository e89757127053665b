/* Forest: renumbering of thresholds and layout of nodes. forest.h has the contract. */
#include "forest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Order two doubles, for qsort. */
static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sort the distinct thresholds of each feature into `f->thresholds` and fill `f->levels`. Return 0, or 1 when out
 * of memory or when a feature has too many thresholds. */
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
        const int64_t blocks = kept / TW_BLOCK + 1, capacity = (blocks + (blocks + TW_BLOCK - 1) / TW_BLOCK) * TW_BLOCK;
        double *more = kept > TW_MAX_LEVEL ? NULL : realloc(f->thresholds, (total + capacity) * sizeof *more);
        if (!more) {
            failed = 1;
            break;
        }
        f->thresholds = more, more += total;
        f->levels[i].first = (int32_t)total, f->levels[i].count = (int32_t)kept, f->levels[i].blocks = (int32_t)blocks;
        for (int64_t j = 0; j < capacity; j++)
            more[j] = j < kept ? own[j] : INFINITY;
        for (int64_t j = 0; j < blocks; j++)
            more[blocks * TW_BLOCK + j] = more[j * TW_BLOCK + TW_BLOCK - 1];
        total += capacity;
    }
    f->n_thresholds = (int32_t)total;
    free(begin);
    free(sorted);
    return failed;
}

/* Return the two floats next to x that enclose it. */
static tw_bounds enclosing(double x)
{
    float nearest = (float)x;
    return (tw_bounds){nearest > x ? nextafterf(nearest, -INFINITY) : nearest,
                       nearest < x ? nextafterf(nearest, INFINITY) : nearest};
}

enum { NODES_PER_LINE = 16 }; /* a cache line has 64 bytes */

/* Give each node of a tree a place, siblings side by side. Each cache line is filled with children of the largest
 * subtrees at hand, so that a traversal touches few lines. `waiting` is a buffer of one number per node. Return the
 * end of the places. */
static int32_t place_nodes(int64_t begin, const int64_t *children, const int32_t *size, int32_t *place,
                           int32_t *waiting)
{
    int32_t end = 2, count = 0,
            on_line = 0; /* entries of `waiting` from `on_line` on have their parent on the line being filled */
    place[0] = 0;
    if (size[0] > 1)
        waiting[count++] = 0;
    while (count) {
        int32_t best = count - 1;
        for (int32_t i = on_line; i < count; i++)
            best = size[waiting[i]] > size[waiting[best]] ? i : best;
        const int32_t parent = waiting[best];
        waiting[best] = waiting[--count];
        on_line = on_line < count ? on_line : count;
        for (int side = 1; side >= 0; side--, end++) { /* left, right */
            const int32_t child = (int32_t)(children[2 * (begin + parent) + side] - begin);
            place[child] = end;
            if (size[child] > 1)
                waiting[count++] = child;
        }
        on_line = end % NODES_PER_LINE ? on_line : count;
    }
    return end;
}

/* Write the number of nodes of each subtree into `size`. Return 0, or -1 when the nodes do not form one tree. */
static int count_subtrees(int64_t begin, int64_t end, const int64_t *children, int32_t *size)
{
    const int64_t n = end - begin;
    for (int64_t i = n - 1; i >= 0; i--) { /* children come after their parents */
        const int64_t *child = children + 2 * (begin + i);
        const int leaf = child[0] == begin + i;
        if (leaf ? child[1] != begin + i
                 : child[0] <= begin + i || child[1] <= begin + i || child[0] >= end || child[1] >= end)
            return -1;
        size[i] = leaf ? 1 : 1 + size[child[0] - begin] + size[child[1] - begin];
        if (size[i] > n)
            return -1;
    }
    return size[0] == n ? 0 : -1;
}

/* Append the tree of nodes `begin` to `end` to the forest. Return 0, or -1 when out of memory or when the nodes do
 * not form a tree. */
static int lay_out_tree(tw_forest *f, int64_t begin, int64_t end, const int64_t *feature, const double *threshold,
                        const int64_t *children, const int8_t *missing, const uint8_t *default_left,
                        const double *value)
{
    const int64_t n = end - begin;
    int32_t leaves = 0, placed = 0, *size = malloc(3 * n * sizeof *size), *place = size + n;
    int failed = !size || n > TW_MAX_NODES || count_subtrees(begin, end, children, size);
    if (!failed) {
        memset(place, 255, n * sizeof *place);
        placed = place_nodes(begin, children, size, place, place + n);
    }
    for (int64_t i = 0; i < n && !failed; i++)
        failed |= place[i] < 0; /* place_nodes reached all n nodes, so each but the root has one parent */
    for (int64_t i = end - 1; i >= begin && !failed; i--) {
        const int32_t here = f->n_nodes + place[i - begin];
        tw_bounds *bounds = &f->bounds[here];
        if (children[2 * i] == i) {
            f->node[here] = (uint32_t)f->n_features | (uint32_t)leaves << TW_OFFSET_SHIFT;
            f->value[f->n_leaves + leaves++] = value[i];
            *bounds = enclosing(value[i]);
            continue;
        }
        const uint32_t step = (uint32_t)(place[children[2 * i + 1] - begin] - place[i - begin]);
        const uint32_t level = (uint32_t)tw_level_of(f, (int32_t)feature[i], threshold[i]);
        f->node[here] = (uint32_t)feature[i] | step << TW_OFFSET_SHIFT | level << TW_LEVEL_SHIFT;
        f->missing[here] = (uint8_t)(missing[i] + (default_left[i] ? 4 : 0));
        const tw_bounds *a = bounds + step, *b = a + 1;
        *bounds = (tw_bounds){a->least < b->least ? a->least : b->least, a->most > b->most ? a->most : b->most};
    }
    if (!failed) {
        const tw_bounds *all = &f->bounds[f->n_nodes];
        f->max_abs_score += fmax(fabs((double)all->least), fabs((double)all->most));
        f->n_nodes += (placed + NODES_PER_LINE - 1) / NODES_PER_LINE * NODES_PER_LINE;
        f->n_leaves += leaves;
    }
    free(size);
    return failed ? -1 : 0;
}

tw_forest *tw_forest_new(int32_t n_trees, const int64_t *roots, int64_t n_nodes, const int64_t *feature,
                         const double *threshold, const int64_t *children, const int8_t *missing,
                         const uint8_t *default_left, const double *value, int32_t n_features)
{
    tw_forest *f = calloc(1, sizeof *f);
    if (!f || n_trees < 1 || n_nodes < n_trees || n_nodes > INT32_MAX / 4 || n_features < 1 ||
        n_features > TW_MAX_FEATURES)
        goto fail;
    f->n_trees = n_trees, f->n_features = n_features;
    f->roots = malloc(n_trees * sizeof *f->roots);
    f->first = malloc(n_trees * sizeof *f->first);
    f->value = malloc(n_nodes * sizeof *f->value);
    const int64_t capacity = (n_nodes / NODES_PER_LINE + 2 * (int64_t)n_trees) *
                             NODES_PER_LINE; /* a root has no sibling, and each tree is padded to whole cache lines */
    f->node = aligned_alloc(NODES_PER_LINE * sizeof *f->node, capacity * sizeof *f->node);
    f->bounds = malloc(capacity * sizeof *f->bounds);
    f->missing = calloc(capacity, 1);
    f->levels = calloc(n_features, sizeof *f->levels);
    if (!f->roots || !f->first || !f->value || !f->node || !f->bounds || !f->missing || !f->levels)
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
        f->roots[t] = f->n_nodes, f->first[t] = f->n_leaves;
        if (lay_out_tree(f, begin, end, feature, threshold, children, missing, default_left, value))
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
        free(f->first);
        free(f->value);
        free(f->node);
        free(f->bounds);
        free(f->missing);
        free(f->levels);
        free(f->thresholds);
        free(f);
    }
}
