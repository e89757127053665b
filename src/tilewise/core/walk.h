/* Trees walked once with a set of kernels instead of once a kernel.
 *
 * Where the levels of a whole set lie on one side of a threshold, one comparison decides for all of it; else the set
 * parts in two. The leaves that come out are sets of kernels with a value each, equal bit for bit to what LightGBM finds
 * for each kernel.
 */
#ifndef TILEWISE_WALK_H
#define TILEWISE_WALK_H

#include "cuts.h"

/* Sets of kernels, each of a tree and at a leaf with its value. Grown as needed. */
typedef struct {
    int32_t count, room, words; /* words: of a set */
    int32_t *tree;              /* (room) */
    double *value;
    uint64_t *set; /* (room, words) */
} tw_sets;

/* Some of the sets of a walk: the number of each, and the node where it is. */
typedef struct {
    int32_t *set, *at;
} tw_places;

/* Room for walks; zeroed before first use. */
typedef struct {
    int32_t room; /* of each of these; what is stored may reach 16 further */
    tw_places here, next, parting, arrived;
    tw_sets leaves;
} tw_walk;

/* Take `count` nodes on, each while the ranges decide. 0, or -1 where memory is short. */
int tw_walk_advance(const tw_cuts *cuts, int32_t *at, int32_t count, tw_walk *walk);

/* Walk trees with all kernels taken, `count` of them, each from its node in `at` on, to the leaves of `walk`. 0, or -1
 * where memory is short. */
int tw_walk_trees(const tw_cuts *cuts, const int32_t *trees, const int32_t *at, int32_t count, tw_walk *walk);
void tw_walk_free(tw_walk *walk);

/* The scores of the `count` kernels taken, which have leaves in every tree, these added tree by tree, into `scores`
 * (TW_TAKEN). 0, or -1 where memory is short. */
int tw_sum_leaves(const tw_sets *leaves, int32_t n_trees, int32_t count, double *scores);

/* Add to each of `count` kernels its leaves' values, in their order; `sums` has room for a multiple of 64. */
void tw_add_leaves(const tw_sets *leaves, int32_t count, double *sums);

#endif
