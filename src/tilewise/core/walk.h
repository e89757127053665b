/* Trees walked once with a set of kernels instead of once a kernel.
 *
 * Where the levels of a whole set lie on one side of a threshold, one comparison decides for all of it; else the set
 * parts in two. The leaves that come out are sets of kernels with a value each, equal bit for bit to what LightGBM finds
 * for each kernel.
 */
#ifndef TILEWISE_WALK_H
#define TILEWISE_WALK_H

#include "cuts.h"

/* Sets of kernels, each of a tree: on their way at a node, or at a leaf with its value. Of their masks there are the
 * words that the cuts call active. Grown as needed. */
typedef struct {
    int32_t count, room, words;
    int64_t mask_room;
    int32_t *tree, *at;
    double *value;
    uint64_t *mask;
} tw_sets;

/* Room for walks; zeroed before first use. */
typedef struct {
    int32_t *moving; /* (open.room) */
    tw_sets open, leaves;
} tw_walk;

/* Take `count` nodes on, each while the ranges decide. 0, or -1 where memory is short. */
int tw_walk_advance(const tw_cuts *cuts, int32_t *at, int32_t count, tw_walk *walk);

/* Walk `count` trees with a set, which the ranges are those of, each from at[tree] on, to the leaves of `walk`. 0, or -1
 * where memory is short. */
int tw_walk_trees(const tw_cuts *cuts, const uint64_t *set, const int32_t *trees, int32_t count, const int32_t *at,
                  tw_walk *walk);
void tw_walk_free(tw_walk *walk);

/* Set `values` (trees) to those of a kernel's leaves; those of other trees stay. */
void tw_values_of(const tw_sets *leaves, const int32_t *active, int32_t kernel, double *values);

/* The scores of all kernels that have leaves in every tree, these added tree by tree, into `scores` (kernels). 0, or -1
 * where memory is short. */
int tw_sum_leaves(const tw_sets *leaves, const int32_t *active, int32_t n_trees, double *scores);

/* Add to `more` (kernels) by how much leaves exceed their tree's of `values`. */
void tw_add_more(const tw_sets *leaves, const int32_t *active, const double *values, double *more);

#endif
