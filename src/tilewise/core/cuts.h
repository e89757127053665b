/* Where the thresholds of a forest cut kernels of a pool, for one problem.
 *
 * A value is a level: the number of thresholds below it. Levels are found once for each class of kernels that share a
 * value. Of up to TW_TAKEN kernels at a time, the sets that thresholds send left are then written down level by level, so
 * that a split is one look-up.
 */
#ifndef TILEWISE_CUTS_H
#define TILEWISE_CUTS_H

#include "forest.h"

/* Which kernels share a value: `of_kernel` (kernels) and, class by class, their bits. */
typedef struct {
    int32_t n_classes;
    int32_t *of_kernel;
    uint64_t *masks;
} tw_classes;

/* A feature of one problem: the value of each class; without classes one value for all kernels. */
typedef struct {
    const double *value;
    const tw_classes *classes;
} tw_column;

/* Lowest and highest level of some kernels, where a node has its level: nodes up to `high` send some of them right, nodes
 * from `low` on some left. */
typedef struct {
    uint16_t low, high;
} tw_range;

enum { TW_UNDECIDED = TW_MOST_LEVEL + 1 };
enum { TW_TAKEN = 256, TW_MOST_WORDS = TW_TAKEN / 64 }; /* kernels that are taken at a time; the i-th is bit i of a set */

/* Classes that have kernels among those taken, and which: `words` words each. A class may come several times. */
typedef struct {
    int32_t count;
    int32_t *number;
    uint64_t *members;
} tw_present;

typedef struct {
    const tw_forest *forest;
    tw_column *columns;     /* (features) */
    int16_t **of_class;     /* (features) the level of each class; -1: a value may count as missing */
    tw_range *whole;        /* (features + 1) of all kernels; that of leaves decides nothing */
    tw_range *range;        /* likewise, of those taken */
    uint8_t *later;         /* (features) the levels of its classes are found when kernels are taken */
    int32_t n_partitions;
    tw_present *present;    /* (partitions) */
    int32_t *partition;     /* (features) of those with classes */
    int32_t *first;         /* (features) where its sets begin in `left`, in words */
    uint64_t *left;         /* sets that go left, of each feature's levels in its range */
    const int32_t *kernels; /* (count) taken */
    int32_t count, words;
} tw_cuts;

/* `columns` stays the caller's, and so do the values that it points to. NULL where memory is short. */
tw_cuts *tw_cuts_new(const tw_forest *forest, tw_column *columns);
void tw_cuts_free(tw_cuts *cuts);

/* Look at a feature's values: now, or at those of the kernels taken each time that some are. */
void tw_cuts_find(tw_cuts *cuts, int32_t feature);
void tw_cuts_find_later(tw_cuts *cuts, int32_t feature);

/* Set the ranges to those of all kernels, taken or not. */
void tw_cuts_take_all(tw_cuts *cuts);

/* Take some kernels, at most TW_TAKEN and at least one; `kernels` stays the caller's. */
void tw_cuts_take(tw_cuts *cuts, const int32_t *kernels, int32_t count);

/* Whether nothing is known of a feature's levels, as a value may count as missing: its splits are to be asked. */
static inline int tw_cuts_unsure(const tw_cuts *c, int32_t feature)
{
    return c->range[feature].high == TW_UNDECIDED;
}

/* Which kernels a split sends left, where its feature's range does not decide and its levels are known. */
static inline const uint64_t *tw_cuts_left(const tw_cuts *c, tw_node node, int32_t words)
{
    const int32_t feature = tw_node_feature(node), low = c->range[feature].low;
    return c->left + c->first[feature] + (size_t)(tw_node_level(node) - low) * words;
}

/* The same for any split, into `sent`. */
void tw_cuts_ask(const tw_cuts *cuts, int32_t at, uint64_t *sent);

#endif
