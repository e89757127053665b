/* Traversal: each tree is descended once for a set of kernels instead of once per kernel.
 *
 * If the levels of a whole set lie on one side of a threshold, one comparison decides for all of its kernels; otherwise
 * the set is split in two. The result is a list of leaf sets: kernels, tree and leaf value. Each kernel gets the same
 * leaves, bit for bit, as in LightGBM.
 */
#ifndef TILEWISE_TRAVERSE_H
#define TILEWISE_TRAVERSE_H

#include "thresholds.h"

/* Sets of kernels, each with the tree it belongs to and the value of the leaf it reached. */
typedef struct {
    int32_t count, capacity, words; /* words: of one set */
    int32_t *tree;                  /* (capacity) */
    double *value;                  /* (capacity) */
    uint64_t *set;                  /* (capacity, words) */
} tw_leaf_sets;

/* Positions of some sets during a traversal. */
typedef struct {
    int32_t *set; /* number of each set */
    int32_t *at;  /* index of its node */
} tw_positions;

/* The memory of traversals, reused between them. Zero it before first use; free it with tw_traversal_free. */
typedef struct {
    int32_t capacity; /* of each list of positions, without padding for vector stores */
    tw_positions current, next, undecided, at_leaf;
    tw_leaf_sets leaves;
} tw_traversal;

/* Advance each of `count` node indices in `at` while its feature's range decides the split.
 * Return 0, or -1 when out of memory. */
int tw_traverse_decided(const tw_thresholds *thresholds, int32_t *at, int32_t count, tw_traversal *traversal);

/* Descend `count` trees with the batch, each from its node in `at` on. The result is `traversal->leaves`.
 * Return 0, or -1 when out of memory. */
int tw_traverse_trees(const tw_thresholds *thresholds, const int32_t *trees, const int32_t *at, int32_t count,
                      tw_traversal *traversal);

/* Free the memory of a traversal and zero it. */
void tw_traversal_free(tw_traversal *traversal);

/* Write the scores of the batch's `count` kernels into `scores` (TW_BATCH). Each kernel must have a leaf in each of the
 * `n_trees` trees; leaf values are added in the order of the trees, as LightGBM adds them.
 * Return 0, or -1 when out of memory. */
int tw_sum_leaves(const tw_leaf_sets *leaves, int32_t n_trees, int32_t count, double *scores);

/* Add the values of its leaves to each of `count` sums, in the order of the list. The capacity of `sums` must be a
 * multiple of 64. */
void tw_add_leaves(const tw_leaf_sets *leaves, int32_t count, double *sums);

#endif
