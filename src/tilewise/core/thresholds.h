/* Thresholds: how the splits of a forest divide a pool's kernels, for one problem.
 *
 * The level of a feature is found once per class of kernels that share its value. For a batch of up to TW_BATCH
 * kernels, the set of kernels that each level sends left is stored in a table, so that evaluating a split is one
 * look-up.
 */
#ifndef TILEWISE_THRESHOLDS_H
#define TILEWISE_THRESHOLDS_H

#include "forest.h"

/* A partition of the kernels into classes that share a value. */
typedef struct {
    int32_t n_classes;
    int32_t *of_kernel; /* (kernels) class of each kernel */
    uint64_t *masks;    /* (classes, words) kernels of each class, one bit per kernel */
} tw_classes;

/* One feature of one problem: a value per class, or a single value for all kernels if `classes` is NULL. */
typedef struct {
    const double *value;
    const tw_classes *classes;
} tw_column;

/* The lowest and highest level of a feature among some kernels. Splits at a level below `low` send all of them right,
 * splits at `high` or above send all of them left. */
typedef struct {
    uint16_t low, high;
} tw_range;

enum { TW_UNKNOWN = TW_MAX_LEVEL + 1 };                /* `high` of a range that decides nothing */
enum { TW_BATCH = 256, TW_MAX_WORDS = TW_BATCH / 64 }; /* kernels of a batch; kernel i of the batch is bit i of a set */

/* The classes of a partition that occur in the batch, and their kernels. Small batches list one class per kernel. */
typedef struct {
    int32_t count;
    int32_t *number;   /* (count) class numbers, possibly repeated */
    uint64_t *members; /* (count, words) */
} tw_present_classes;

typedef struct {
    const tw_forest *forest;
    tw_column *columns;   /* (features) borrowed from the caller */
    int16_t *levels;      /* the levels of all features, class by class */
    int16_t **of_class;   /* (features) level of each class, or -1 if its value may count as missing */
    tw_range *pool_range; /* (features + 1) over all kernels; the extra one belongs to leaves and decides nothing */
    tw_range *range;      /* (features + 1) over the batch */
    uint8_t *deferred;    /* (features) 1 if levels are found when a batch is set */
    int32_t n_partitions;
    tw_present_classes *present; /* (n_partitions) */
    int32_t *partition;          /* (features) partition of each feature that has classes */
    int32_t *left_begin;         /* (features) where the feature's sets begin in `left_sets`, in words */
    uint64_t *left_sets;         /* kernels that go left, per feature and level of its range */
    const int32_t *kernels;      /* (count) the batch, borrowed from the caller */
    int32_t count, words;
} tw_thresholds;

/* Return new thresholds, which the caller frees with tw_thresholds_free; NULL when out of memory. `columns` and the
 * values that it points to stay the caller's and must outlive the result. */
tw_thresholds *tw_thresholds_new(const tw_forest *forest, tw_column *columns);

/* Free thresholds, but not their columns. NULL is allowed. */
void tw_thresholds_free(tw_thresholds *thresholds);

/* Find the levels of a feature for all its classes. */
void tw_thresholds_find_levels(tw_thresholds *thresholds, int32_t feature);

/* Find the levels of a feature only for the classes of each batch. */
void tw_thresholds_defer_levels(tw_thresholds *thresholds, int32_t feature);

/* Set the ranges to those of all kernels of the pool; the batch becomes empty. */
void tw_thresholds_cover_pool(tw_thresholds *thresholds);

/* Set the batch to `count` kernels, 1 to TW_BATCH. `kernels` stays the caller's and must outlive the batch. */
void tw_thresholds_set_batch(tw_thresholds *thresholds, const int32_t *kernels, int32_t count);

/* Return 1 if a feature's levels are unknown, because a value may count as missing. Its splits need
 * tw_thresholds_evaluate. */
static inline int tw_thresholds_unknown(const tw_thresholds *th, int32_t feature)
{
    return th->range[feature].high == TW_UNKNOWN;
}

/* Return the set of kernels that a split sends left; it belongs to the thresholds. The levels of the split's feature
 * must be known, and its range must not decide the split. */
static inline const uint64_t *tw_thresholds_left_set(const tw_thresholds *th, tw_node node, int32_t words)
{
    const int32_t feature = tw_node_feature(node), low = th->range[feature].low;
    return th->left_sets + th->left_begin[feature] + (ptrdiff_t)(tw_node_level(node) - low) * words;
}

/* Write the set of kernels that the split at node `at` sends left into `sent` (words), comparing values. */
void tw_thresholds_evaluate(const tw_thresholds *thresholds, int32_t at, uint64_t *sent);

#endif
