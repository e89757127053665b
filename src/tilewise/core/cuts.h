/* Where the thresholds of a forest cut kernels of a pool, for one problem.
 *
 * A value is a level: the number of thresholds below it. Levels are found once for each class of kernels that share a
 * value. Of up to TW_TAKEN kernels at a time they are then laid out so that one comparison with all of them gives the set
 * that a threshold sends left.
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
    uint32_t low, high;
} tw_range;

enum { TW_UNDECIDED = TW_MOST_LEVEL + 1 };
enum { TW_TAKEN = 256, TW_ROW = 16 }; /* kernels that are taken at a time, in rows */

/* A set of the kernels taken: kernel i is bit i / 16 of lane i % 16, so that comparing a row of levels gives a bit of each
 * lane. By pointers only: how vectors are passed differs between clones. */
typedef uint16_t tw_set __attribute__((vector_size(2 * TW_ROW), aligned(8)));
typedef uint64_t tw_words __attribute__((vector_size(2 * TW_ROW))); /* the same */

typedef struct {
    const tw_forest *forest;
    tw_column *columns;     /* (features) */
    int16_t **of_class;     /* (features) the level of each class; -1: a value may count as missing */
    tw_range *whole;        /* (features + 1) of all kernels; that of leaves decides nothing */
    tw_range *range;        /* likewise, of those taken */
    int16_t *level;         /* (features, TW_TAKEN) of those taken; then those of the first, to the end of a row */
    const int32_t *kernels; /* (count) taken */
    int32_t count, rows;
} tw_cuts;

/* `columns` stays the caller's, and so do the values that it points to. NULL where memory is short. */
tw_cuts *tw_cuts_new(const tw_forest *forest, tw_column *columns);
void tw_cuts_free(tw_cuts *cuts);

/* Look at a feature's values. */
void tw_cuts_find(tw_cuts *cuts, int32_t feature);

/* Set the ranges to those of all kernels, taken or not. */
void tw_cuts_take_all(tw_cuts *cuts);

/* Take some kernels, at most TW_TAKEN and at least one; `kernels` stays the caller's. */
void tw_cuts_take(tw_cuts *cuts, const int32_t *kernels, int32_t count);

/* Whether nothing is known of a feature's levels, as a value may count as missing: its splits are to be asked. */
static inline int tw_cuts_unsure(const tw_cuts *c, int32_t feature)
{
    return c->range[feature].high >> 22 == TW_UNDECIDED;
}

/* Which kernels a split of a feature whose levels are known sends left. */
static inline void tw_cuts_left(const tw_cuts *c, tw_node node, tw_set *sent)
{
    typedef int16_t row __attribute__((vector_size(2 * TW_ROW)));
    const row *level = (const row *)(c->level + (size_t)tw_node_feature(node) * TW_TAKEN);
    const int16_t most = (int16_t)tw_node_level(node);
    tw_set left = {0}, bit = left + 1;
    for (int32_t i = 0; i < c->rows; i++, bit += bit)
        left |= (tw_set)(level[i] <= most) & bit;
    *sent = left;
}

/* The same for any split. */
void tw_cuts_ask(const tw_cuts *cuts, int32_t at, tw_set *sent);

#endif
