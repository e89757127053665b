/* Search for the best kernels. Trees whose leaves differ most are evaluated first. A kernel is dropped when even the
 * largest sum of the remaining trees would not lift it to the best. search.h has the contract. */
#include "search.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SCORE_ALL_TREES = 512, /* up to this many trees, scoring all kernels is about as fast as guessing and pruning */
    GUESS_MIN_TREES = 32,  /* the guess uses at least this many trees, */
    GUESS_DIVISOR = 2,     /* or 1 / GUESS_DIVISOR of the trees with more than one leaf left */
    PRUNE_INTERVAL = 64,   /* trees between two rounds of pruning */
    BUCKETS = 128,         /* of the width of a tree's bounds */
};

/* Order candidates by score, highest first, and then by kernel number, for qsort. */
static int better_first(const void *a, const void *b)
{
    const tw_candidate *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : x->kernel - y->kernel;
}

void tw_sort_best(tw_candidate *c, int32_t count, int32_t most)
{
    if (most > 64) {
        qsort(c, count, sizeof *c, better_first);
        return;
    }
    for (int32_t i = 1; i < count; i++) {
        tw_candidate x = c[i];
        int32_t j = i < most ? i : most;
        if (j == most && (!most || better_first(&x, &c[most - 1]) >= 0))
            continue;
        if (j == most)
            c[i] = c[--j];
        for (; j > 0 && better_first(&x, &c[j - 1]) < 0; j--)
            c[j] = c[j - 1];
        c[j] = x;
    }
}

/* Write `count` trees with their nodes into `to`, those with the widest bounds first, by a bucket sort. Return how
 * many of them have more than one leaf left. `bucket` (count) is a buffer. */
static int32_t order_trees(const tw_forest *f, tw_trees from, int32_t count, uint8_t *bucket, tw_trees to)
{
    int32_t begin[BUCKETS + 1] = {0};
    float top = 0.0F;
    for (int32_t i = 0; i < count; i++) {
        const tw_bounds *b = &f->bounds[from.at[i]];
        top = b->most - b->least > top ? b->most - b->least : top;
    }
    const float scale = (BUCKETS - 2) / top;
    for (int32_t i = 0; i < count; i++) {
        const tw_bounds *b = &f->bounds[from.at[i]];
        const float share = (b->most - b->least) * scale;
        bucket[i] = share < BUCKETS - 2 ? (uint8_t)(BUCKETS - 2 - (int32_t)share) : 0;
        bucket[i] = tw_node_feature(f->node[from.at[i]]) == f->n_features ? BUCKETS - 1 : bucket[i];
        begin[bucket[i] + 1]++;
    }
    const int32_t n_splitting = count - begin[BUCKETS];
    for (int32_t i = 0; i < BUCKETS; i++)
        begin[i + 1] += begin[i];
    for (int32_t i = 0; i < count; i++) {
        const int32_t place = begin[bucket[i]]++;
        to.tree[place] = from.tree[i], to.at[place] = from.at[i];
    }
    return n_splitting;
}

/* Return the smaller number. */
static int32_t least_of(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Compute the exact scores of `count` candidates. Return 0 or an error. */
static int32_t score_exactly(const tw_ranker *r, tw_workspace *ws, tw_candidate *best, int32_t count)
{
    const int32_t trees = r->scores->n_trees;
    for (; count > 0; best += TW_BATCH, count -= TW_BATCH) {
        const int32_t n = least_of(count, TW_BATCH);
        for (int32_t i = 0; i < n; i++)
            ws->batch[i] = best[i].kernel;
        tw_thresholds_set_batch(ws->scores, ws->batch, n);
        if (tw_traverse_trees(ws->scores, ws->all.tree, ws->all.at, trees, &ws->traversal) ||
            tw_sum_leaves(&ws->traversal.leaves, trees, n, ws->sums))
            return TW_NO_MEMORY;
        for (int32_t i = 0; i < n; i++)
            best[i].score = ws->base[best[i].kernel] + ws->sums[i];
    }
    return 0;
}

/* Guess the best `most` kernels by the first `done` trees and score them exactly. The other kernels then have to
 * beat the last of them. Return 0 or an error. */
static int32_t guess_best(const tw_ranker *r, tw_workspace *ws, int32_t count, int32_t most, int32_t done)
{
    for (int32_t first = 0; first < count; first += TW_BATCH) {
        const int32_t n = least_of(count - first, TW_BATCH);
        if (count > TW_BATCH)
            tw_thresholds_set_batch(ws->scores, ws->kernels + first, n);
        if (tw_traverse_trees(ws->scores, ws->all.tree, ws->all.at, done, &ws->traversal))
            return TW_NO_MEMORY;
        for (int32_t i = first; i < first + n; i++)
            ws->total[i] = ws->base[ws->kernels[i]];
        tw_add_leaves(&ws->traversal.leaves, n, ws->total + first);
    }
    for (int32_t i = 0; i < count; i++)
        ws->best[i] = (tw_candidate){ws->total[i], ws->kernels[i], i};
    tw_sort_best(ws->best, count, most);
    for (int32_t i = 0; i < most; i++)
        ws->total[ws->best[i].position] = -INFINITY; /* already scored */
    if (score_exactly(r, ws, ws->best, most))
        return TW_NO_MEMORY;
    tw_sort_best(ws->best, most, most);
    return 0;
}

/* Write a bound on the sum of the trees from each one on into `max_remaining` (count + 1); `rest` bounds all trees
 * behind these. */
static void bound_remaining(const tw_forest *f, const int32_t *at, int32_t count, double rest, double *max_remaining)
{
    max_remaining[count] = rest;
    for (int32_t i = count - 1; i >= 0; i--)
        max_remaining[i] = max_remaining[i + 1] + f->bounds[at[i]].most;
}

/* Continue with `count` kernels, at most TW_BATCH, whose `total` covers the first `done` trees. Append the kernels
 * that can still reach `least` to `best`, from index `found` on. Return the new number of candidates, or an error. */
static int32_t prune(const tw_ranker *r, tw_workspace *ws, const int32_t *kernels, double *total, int32_t count,
                     double least, int32_t done, int32_t found)
{
    const tw_forest *f = r->scores;
    int32_t trees = f->n_trees - done, narrow_below = count;
    memcpy(ws->some.tree, ws->all.tree + done, trees * sizeof *ws->some.tree);
    memcpy(ws->some.at, ws->all.at + done, trees * sizeof *ws->some.at);
    memcpy(ws->batch, kernels, count * sizeof *kernels);
    bound_remaining(f, ws->some.at, trees, 0.0, ws->max_remaining);
    for (done = 0;;) {
        int32_t left = 0;
        for (int32_t i = 0; i < count; i++)
            left += !(total[i] + ws->max_remaining[done] < least);
        if (!left)
            return found;
        if (left <= narrow_below || done == trees) {
            for (int32_t i = 0, to = 0; to < left; i++) {
                ws->batch[to] = ws->batch[i], total[to] = total[i];
                to += !(total[i] + ws->max_remaining[done] < least);
            }
            count = left;
        }
        if (done == trees)
            break;
        if (left <= narrow_below) { /* fewer kernels have narrower ranges, which decide more splits */
            const tw_trees ahead = {ws->some.tree + done, ws->some.at + done};
            tw_thresholds_set_batch(ws->scores, ws->batch, count);
            if (tw_traverse_decided(ws->scores, ahead.at, trees - done, &ws->traversal))
                return TW_NO_MEMORY;
            const int32_t n_splitting = order_trees(f, ahead, trees - done, ws->bucket, ws->more);
            bound_remaining(f, ws->more.at + n_splitting, trees - done - n_splitting, ws->max_remaining[trees],
                            ws->max_remaining);
            bound_remaining(f, ws->more.at, n_splitting, ws->max_remaining[0], ws->max_remaining);
            const tw_trees other = ws->some;
            ws->some = ws->more, ws->more = other;
            trees = n_splitting, done = 0, narrow_below = count / 2;
            continue;
        }
        const int32_t step = least_of(PRUNE_INTERVAL, trees - done);
        if (tw_traverse_trees(ws->scores, ws->some.tree + done, ws->some.at + done, step, &ws->traversal))
            return TW_NO_MEMORY;
        tw_add_leaves(&ws->traversal.leaves, count, total);
        done += step;
    }
    for (int32_t i = 0; i < count; i++)
        ws->best[found++].kernel = ws->batch[i];
    return found;
}

/* Find the candidates for the best `most` of more than `most` kernels: guess, then prune by bounds. Return how many
 * candidates there are, or an error. */
static int32_t guess_and_prune(const tw_ranker *r, tw_workspace *ws, int32_t count, int32_t most)
{
    const tw_forest *f = r->scores;
    double size = 0.0;
    if (count > TW_BATCH)
        tw_thresholds_cover_pool(ws->scores);
    else
        tw_thresholds_set_batch(ws->scores, ws->kernels, count);
    memcpy(ws->some.tree, ws->all.tree, f->n_trees * sizeof *ws->some.tree);
    memcpy(ws->some.at, ws->all.at, f->n_trees * sizeof *ws->some.at);
    if (tw_traverse_decided(ws->scores, ws->some.at, f->n_trees, &ws->traversal))
        return TW_NO_MEMORY;
    const int32_t n_splitting = order_trees(f, ws->some, f->n_trees, ws->bucket, ws->all);
    const int32_t done = least_of(
        n_splitting / GUESS_DIVISOR > GUESS_MIN_TREES ? n_splitting / GUESS_DIVISOR : GUESS_MIN_TREES, n_splitting);
    if (guess_best(r, ws, count, most, done))
        return TW_NO_MEMORY;
    for (int32_t i = 0; i < count; i++)
        size = fabs(ws->base[ws->kernels[i]]) > size ? fabs(ws->base[ws->kernels[i]]) : size;
    const double slack = 8.0 * (f->n_trees + 4.0) * DBL_EPSILON *
                         (size + 2.0 * f->max_abs_score); /* bound on rounding, for sums in any order */
    int32_t found = most;
    for (int32_t i = 0; i < count && found >= 0; i += TW_BATCH)
        found = prune(r, ws, ws->kernels + i, ws->total + i, least_of(count - i, TW_BATCH),
                      ws->best[most - 1].score - slack, done, found);
    if (found < 0 || score_exactly(r, ws, ws->best + most, found - most))
        return TW_NO_MEMORY;
    return found;
}

/* Find the levels of features that depend on the problem. `once`: only one batch will be set, so levels are
 * deferred to it. */
static void find_levels(const tw_ranker *r, tw_thresholds *thresholds, int once)
{
    for (int32_t i = 0; i < r->features.count; i++)
        if (!tw_is_constant(r, r->features.at[i])) {
            if (once)
                tw_thresholds_defer_levels(thresholds, i);
            else
                tw_thresholds_find_levels(thresholds, i);
        }
}

int32_t tw_search(const tw_ranker *r, tw_workspace *ws, int32_t count, int32_t most)
{
    const tw_forest *f = r->scores;
    const int once = count <= TW_BATCH && (most >= count || f->n_trees <= SCORE_ALL_TREES);
    int32_t found = count;
    find_levels(r, ws->scores, once);
    for (int32_t i = 0; i < f->n_trees; i++)
        ws->all.tree[i] = i, ws->all.at[i] = f->roots[i];
    if (once || most >= count) {
        for (int32_t i = 0; i < count; i++)
            ws->best[i].kernel = ws->kernels[i];
        if (score_exactly(r, ws, ws->best, count))
            return TW_NO_MEMORY;
    } else
        found = guess_and_prune(r, ws, count, most);
    if (found < 0)
        return TW_NO_MEMORY;
    tw_sort_best(ws->best, found, most);
    return 0;
}
