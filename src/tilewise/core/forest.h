/* LightGBM's trees in little room, their thresholds numbered.
 *
 * A feature's thresholds are numbered in order, so that a value is the number of thresholds below it: its level. What a
 * walk compares are levels; which leaf it comes to is LightGBM's.
 */
#ifndef TILEWISE_FOREST_H
#define TILEWISE_FOREST_H

#include <stddef.h>
#include <stdint.h>

enum { TW_MISSING_NONE, TW_MISSING_ZERO, TW_MISSING_NAN };

typedef struct {
    int32_t first;    /* thresholds begin there, in blocks, filled up with infinities */
    int32_t count;    /* of them, without the infinities */
    int32_t blocks;   /* then there are the last ones of each block, in blocks as well */
    int32_t may_miss; /* some split treats some value as missing */
} tw_levels;

enum { TW_BLOCK = 16 };

/* A model in few bytes, so that it stays in the second cache. A split sends values up to a level left; its left child is
 * `step` nodes on, its right child is the next. What walks come to most lies in one line of the cache: see forest.c.
 *
 *     feature, from bit 0   step, from TW_STEP   level, from TW_LEVEL
 *
 * A leaf has the feature `n_features`, and its number in the tree for a step. */
typedef uint32_t tw_node;

enum { TW_MOST_FEATURES = 255, TW_MOST_LEVEL = 1022, TW_MOST_NODES = 8192 }; /* nodes of a tree */
enum { TW_STEP = 8, TW_LEVEL = 22, TW_FEATURE_BITS = (1 << TW_STEP) - 1, TW_STEP_BITS = (1 << (TW_LEVEL - TW_STEP)) - 1 };

static inline int32_t tw_node_feature(tw_node node) { return node & TW_FEATURE_BITS; }
static inline int32_t tw_node_step(tw_node node) { return node >> TW_STEP & TW_STEP_BITS; }
static inline int32_t tw_node_level(tw_node node) { return (int32_t)(node >> TW_LEVEL); }

/* The leaves under a node lie between, rounded outwards. */
typedef struct {
    float least, most;
} tw_bounds;

typedef struct {
    int32_t n_trees, n_features, n_nodes, n_leaves, n_thresholds; /* nodes: with gaps */
    int32_t *roots;    /* (n_trees) */
    int32_t *first;    /* (n_trees) where a tree's values begin */
    double *value;     /* (n_leaves) */
    tw_node *node;     /* (n_nodes) */
    tw_bounds *bounds; /* (n_nodes) */
    uint8_t *missing;  /* (n_nodes) what is missing there; + 4: it goes left */
    tw_levels *levels; /* (n_features) */
    double *thresholds;
    double size; /* no score is larger, nor any sum of some of its leaves */
} tw_forest;

/* `children` are right and left of node i at 2 i, 2 i + 1, a leaf's are itself; the rest is as in model/trees.py.
 * NULL where memory is short, or the nodes form no trees or larger ones than 16 bits count. */
tw_forest *tw_forest_new(int32_t n_trees, const int64_t *roots, int64_t n_nodes, const int64_t *feature,
                         const double *threshold, const int64_t *children, const int8_t *missing,
                         const uint8_t *default_left, const double *value, int32_t n_features);
void tw_forest_free(tw_forest *forest);

/* How many of a block of thresholds are below x; no branch, so that the processor compares many at once. */
static inline int32_t tw_count_below(const double *thresholds, double x)
{
    int64_t below = 0;
#pragma GCC unroll 1 /* or else it is unrolled before it could be vectorised */
    for (int32_t i = 0; i < TW_BLOCK; i++)
        below += thresholds[i] < x;
    return (int32_t)below;
}

/* How many thresholds of a feature are below x: what lies at the level of a threshold, or under it, goes left. */
static inline int32_t tw_level_of(const tw_forest *f, int32_t feature, double x)
{
    const tw_levels *levels = &f->levels[feature];
    const double *thresholds = f->thresholds + levels->first, *last = thresholds + levels->blocks * TW_BLOCK;
    int32_t block = 0;
    for (int32_t i = 0; i < levels->blocks; i += TW_BLOCK)
        block += tw_count_below(last + i, x);
    return block * TW_BLOCK + tw_count_below(thresholds + block * TW_BLOCK, x);
}

#endif
