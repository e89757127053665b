/* LightGBM's trees, walked once with a set of kernels instead of once a kernel.
 *
 * Kernels are bits of a mask. A feature's thresholds are numbered in order, so that a value is the number of thresholds
 * below it: its level. Where the levels of all kernels lie on one side of a threshold, one comparison decides for all of
 * them; else the set parts in two. The leaves that come out are sets of kernels with a value each, equal bit for bit to
 * what LightGBM finds for each kernel.
 */
#ifndef TILEWISE_FOREST_H
#define TILEWISE_FOREST_H

#include <stddef.h>
#include <stdint.h>

enum { TW_MISSING_NONE, TW_MISSING_ZERO, TW_MISSING_NAN };

typedef struct {
    int32_t first, depth; /* thresholds begin there; 2^depth - 1 of them, filled up with infinities */
    int32_t may_miss;     /* some split treats some value as missing */
} tw_levels;

/* A model in few bytes, so that it stays in the second cache. A split takes one slot of 32 bits: it sends values up to a
 * level left; one of its children follows it, the other is `step` slots on.
 *
 *     bits 0-7 feature   8-17 level   18 whether the left child is the one that follows   19-31 step
 *
 * A leaf takes three: one with the feature `n_features`, and its value. */
typedef uint32_t tw_node;

enum { TW_MOST_FEATURES = 255, TW_MOST_LEVEL = 1022, TW_MOST_SLOTS = 8192 }; /* slots of a tree */
enum { TW_LEAF_SLOTS = 3 };

typedef struct {
    int32_t n_trees, n_features, n_slots, n_thresholds;
    int32_t *roots;    /* (n_trees) */
    tw_node *node;     /* (n_slots) */
    uint8_t *missing;  /* (n_slots) what is missing there; + 4: it goes left */
    tw_levels *levels; /* (n_features) */
    double *thresholds;
} tw_forest;

/* A feature of one problem: value[index[k]] for kernel k; without an index one value for all. */
typedef struct {
    const double *value;
    const int32_t *index;
    int32_t n_values;
} tw_column;

/* Sets of kernels, each of a tree: on their way at a node, or at a leaf with its value. Grown as needed. */
typedef struct {
    int32_t count, room, words;
    int32_t *tree, *at;
    double *value;
    uint64_t *mask;
} tw_sets;

/* Room for a walk; zeroed before first use, then it may be used again for any forest. */
typedef struct {
    int32_t n_features, n_rows;
    int16_t *level;   /* (features, rows) */
    int16_t *range;   /* (features, 2): lowest and highest level */
    int16_t *scratch; /* (values) */
    int32_t n_values;
    int32_t *moving; /* (open.room) */
    tw_sets open, leaves;
} tw_walk;

/* `children` are right and left of node i at 2 i, 2 i + 1, a leaf's are itself; the rest is as in model/trees.py.
 * NULL where memory is short, or the nodes form no trees or larger ones than 16 bits count. */
tw_forest *tw_forest_new(int32_t n_trees, const int64_t *roots, int64_t n_nodes, const int64_t *feature,
                         const double *threshold, const int64_t *children, const int8_t *missing,
                         const uint8_t *default_left, const double *value, int32_t n_features);
void tw_forest_free(tw_forest *forest);

/* Walk all trees with `n` kernels; bit i of a set is kernel rows[i]. `walk->leaves` then has every tree's leaves.
 * 0, or -1 where memory is short. */
int tw_forest_walk(const tw_forest *forest, const tw_column *columns, const int32_t *rows, int32_t n, tw_walk *walk);
void tw_walk_free(tw_walk *walk);

/* The score of bit `i`, its leaves' values added tree by tree; `values`: room for n_trees numbers. */
double tw_score_of(const tw_sets *leaves, int32_t i, int32_t n_trees, double *values);

/* The scores of all `n` bits, likewise. 0, or -1 where memory is short. */
int tw_score_all(const tw_sets *leaves, int32_t n, int32_t n_trees, double *scores);

/* How the scores of bits 1 to n - 1 differ from that of bit 0: `values` (n_trees) is set to the leaves of that one. */
typedef struct {
    double most; /* by how much any of them may be above it */
    double least;
} tw_spread;

tw_spread tw_spread_of(const tw_sets *leaves, int32_t n_trees, double *values, double *low, double *high);

/* How much more than bit 0 the first `n` bits score, summed in floats: `more` (64 words). `values`: as tw_spread_of left
 * it. */
void tw_compare(const tw_sets *leaves, int32_t n, const double *values, float *more);

#endif
