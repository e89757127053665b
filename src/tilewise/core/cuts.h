/* Where the thresholds of a forest cut the kernels of a pool, for one problem.
 *
 * Kernels are bits of a mask, `words` of 64. A feature gives the classes of a partition a value each; the classes in the
 * order of their levels, what a threshold sends left are the first few of them: a mask made once, taken by many splits.
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

/* A feature's classes that are in play, in the order of their levels. */
typedef struct {
    uint16_t *below; /* (levels) how many of them lie below a level */
    uint64_t *left;  /* (n + 1, words) the first of them together: none, one, ... all */
    int16_t *level;  /* (n) */
    uint16_t *place; /* (classes) where in that order a class is */
    int32_t n, low, high; /* the set that the ranges are of has classes from low to high */
} tw_cut;

/* Lowest and highest level of a set, where a node has its level: nodes up to `high` send some of it right, nodes from
 * `low` on some left. */
typedef struct {
    uint32_t low, high;
} tw_range;

enum { TW_UNDECIDED = TW_MOST_LEVEL + 1 };

typedef struct {
    const tw_forest *forest;
    tw_column *columns; /* (features) */
    int32_t words;
    tw_cut *of;         /* (features) */
    tw_range *range;    /* (features + 1) of a set; that of leaves decides nothing */
    int32_t *active;    /* (n_active) the words of that set that are not 0 */
    int32_t n_active;
    uint64_t *asked;    /* (words) */
    uint16_t *list;     /* (most classes of a feature) */
    int16_t *levels;    /* likewise */
    void *room;
} tw_cuts;

/* `columns` stays the caller's, and so do the values that it points to. NULL where memory is short. */
tw_cuts *tw_cuts_new(const tw_forest *forest, tw_column *columns, int32_t words);
void tw_cuts_free(tw_cuts *cuts);

/* Look at a feature's values of the kernels in play. */
void tw_cuts_find(tw_cuts *cuts, int32_t feature, const uint64_t *alive);

/* Begin with another set of kernels in play. */
void tw_cuts_widen(tw_cuts *cuts);

/* Set the ranges to those of a set that is not empty, and no larger than in the call before. */
void tw_cuts_narrow(tw_cuts *cuts, const uint64_t *set);

/* Set the ranges to those of any set of kernels in play, in time that grows with it. */
void tw_cuts_focus(tw_cuts *cuts, const uint64_t *set);

/* Whether nothing is known of a feature's levels, as a value may count as missing: its splits are to be asked. */
static inline int tw_cuts_unsure(const tw_cuts *c, int32_t feature)
{
    return c->range[feature].high >> 22 == TW_UNDECIDED;
}

/* The kernels that a split of a feature whose levels are known sends left. */
static inline const uint64_t *tw_cuts_left(const tw_cuts *c, tw_node node)
{
    const tw_cut *cut = &c->of[tw_node_feature(node)];
    return cut->left + (size_t)cut->below[tw_node_level(node) + 1] * c->words;
}

/* The same for any split, until the next call. */
const uint64_t *tw_cuts_ask(const tw_cuts *cuts, int32_t at);

#endif
