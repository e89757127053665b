/* Trees walked once with a set of kernels instead of once a kernel.
 *
 * Where the levels of a whole set lie on one side of a threshold, one comparison decides for all of it; else the set
 * parts in two. The leaves that come out are sets of kernels with a value each, equal bit for bit to what LightGBM finds
 * for each kernel.
 */
#ifndef TILEWISE_WALK_H
#define TILEWISE_WALK_H

#include "cuts.h"

/* Sets of kernels, each of a tree: on their way at a node, or at a leaf with its value. Grown as needed. */
typedef struct {
    int32_t count, room;
    int32_t *tree, *at;
    double *value;
    tw_set *set;
} tw_sets;

/* Room for walks; zeroed before first use. */
typedef struct {
    int32_t *moving; /* (open.room) */
    tw_sets open, leaves;
} tw_walk;

/* Take `count` nodes on, each while the ranges decide. 0, or -1 where memory is short. */
int tw_walk_advance(const tw_cuts *cuts, int32_t *at, int32_t count, tw_walk *walk);

/* Walk trees with all kernels taken, `count` of them, each from its node in `at` on, to the leaves of `walk`. 0, or -1
 * where memory is short. */
int tw_walk_trees(const tw_cuts *cuts, const int32_t *trees, const int32_t *at, int32_t count, tw_walk *walk);
void tw_walk_free(tw_walk *walk);

/* The scores of the kernels taken, which have leaves in every tree, these added tree by tree, into `scores` (TW_TAKEN).
 * 0, or -1 where memory is short. */
int tw_sum_leaves(const tw_sets *leaves, int32_t n_trees, double *scores);

/* Add to each of `count` kernels its leaves' values, in any order; `sums` has room for a multiple of 64. */
void tw_add_leaves(const tw_sets *leaves, int32_t count, double *sums);

#endif
