/* A forest: LightGBM's trees in a compact layout, with numbered thresholds.
 *
 * The thresholds of a feature are sorted and numbered. The level of a value is the number of thresholds below it, and a
 * traversal compares levels instead of values. Each row of features reaches the same leaves as in LightGBM.
 */
#ifndef TILEWISE_FOREST_H
#define TILEWISE_FOREST_H

#include <stddef.h>
#include <stdint.h>

/* The value that a split treats as missing. */
enum { TW_MISSING_NONE, TW_MISSING_ZERO, TW_MISSING_NAN };

/* The thresholds of one feature, in blocks of TW_BLOCK that are padded with infinity. The last threshold of each block
 * follows the blocks, in blocks itself, so that one comparison can skip a whole block. */
typedef struct {
    int32_t first;    /* index of the first threshold */
    int32_t count;    /* thresholds, without padding */
    int32_t blocks;   /* blocks of thresholds */
    int32_t may_miss; /* 1 if some split on this feature treats zero or NaN as missing */
} tw_levels;

enum { TW_BLOCK = 16 };

/* A node in four bytes, so that a model stays in the second-level cache. From the lowest bit: feature, offset, level.
 * A split sends values up to its level to the left child, which is `offset` nodes on; the right child is the next node.
 * A leaf has the feature number `n_features`, and its leaf number within the tree in place of the offset. */
typedef uint32_t tw_node;

enum { TW_MAX_FEATURES = 255, TW_MAX_LEVEL = 1022, TW_MAX_NODES = 8192 }; /* nodes: of one tree */
enum {
    TW_OFFSET_SHIFT = 8,
    TW_LEVEL_SHIFT = 22,
    TW_FEATURE_MASK = (1 << TW_OFFSET_SHIFT) - 1,
    TW_OFFSET_MASK = (1 << (TW_LEVEL_SHIFT - TW_OFFSET_SHIFT)) - 1
};

/* Return the feature number of a node. */
static inline int32_t tw_node_feature(tw_node node)
{
    return (int32_t)(node & TW_FEATURE_MASK);
}

/* Return the offset to a split's left child, or the number of a leaf. */
static inline int32_t tw_node_offset(tw_node node)
{
    return (int32_t)(node >> TW_OFFSET_SHIFT & TW_OFFSET_MASK);
}

/* Return the level of a split's threshold. */
static inline int32_t tw_node_level(tw_node node)
{
    return (int32_t)(node >> TW_LEVEL_SHIFT);
}

/* Bounds on the values of the leaves below a node, rounded outwards. */
typedef struct {
    float least, most;
} tw_bounds;

typedef struct {
    int32_t n_trees, n_features, n_nodes, n_leaves, n_thresholds; /* n_nodes and n_thresholds include padding */
    int32_t *roots;                                               /* (n_trees) index of each root */
    int32_t *first;                                               /* (n_trees) index of each tree's first leaf value */
    double *value;                                                /* (n_leaves) */
    tw_node *node;                                                /* (n_nodes) */
    tw_bounds *bounds;                                            /* (n_nodes) */
    uint8_t *missing;     /* (n_nodes) TW_MISSING_*, plus 4 if missing values go left */
    tw_levels *levels;    /* (n_features) */
    double *thresholds;   /* (n_thresholds) */
    double max_abs_score; /* bound on any score and on any partial sum of its leaves */
} tw_forest;

/* Return a new forest with copies of the arrays, which the caller frees with tw_forest_free.
 *
 * The arrays are those of Ensemble in model/_trees.py: `children` has the right and left child of node i at 2 i and
 * 2 i + 1; a leaf is its own child. NULL when out of memory, when the nodes do not form trees, or when the forest
 * exceeds a TW_MAX_ limit. */
tw_forest *tw_forest_new(int32_t n_trees, const int64_t *roots, int64_t n_nodes, const int64_t *feature,
                         const double *threshold, const int64_t *children, const int8_t *missing,
                         const uint8_t *default_left, const double *value, int32_t n_features);

/* Free a forest and its arrays. NULL is allowed. */
void tw_forest_free(tw_forest *forest);

/* Return how many thresholds of one block are below x. Branch-free, so that the compiler vectorises it. */
static inline int32_t tw_count_below(const double *thresholds, double x)
{
    int64_t below = 0;
#pragma GCC unroll 1 /* unrolling first would prevent vectorisation */
    for (int32_t i = 0; i < TW_BLOCK; i++)
        below += thresholds[i] < x;
    return (int32_t)below;
}

/* Return the level of x: how many thresholds of the feature are below it. A split sends x left if the level of x is at
 * most the level of the split's threshold. */
static inline int32_t tw_level_of(const tw_forest *f, int32_t feature, double x)
{
    const tw_levels *levels = &f->levels[feature];
    const double *thresholds = f->thresholds + levels->first, *last = thresholds + (ptrdiff_t)levels->blocks * TW_BLOCK;
    int32_t block = 0;
    for (int32_t i = 0; i < levels->blocks; i += TW_BLOCK)
        block += tw_count_below(last + i, x);
    return block * TW_BLOCK + tw_count_below(thresholds + (ptrdiff_t)block * TW_BLOCK, x);
}

#endif
