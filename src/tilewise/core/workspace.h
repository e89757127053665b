/* A workspace: the memory that one call computes in. A ranker keeps one spare workspace for the next call. */
#ifndef TILEWISE_WORKSPACE_H
#define TILEWISE_WORKSPACE_H

#include "ranker.h"
#include "traverse.h"

typedef struct {
    double score;
    int32_t kernel, position; /* position: among the supported kernels */
} tw_candidate;

/* Trees, each with the node where its traversal begins. */
typedef struct {
    int32_t *tree, *at; /* (trees) */
} tw_trees;

struct tw_workspace {
    tw_slot *frame;                /* (slots) of the bytecode */
    tw_thresholds *scores, *scale; /* of the forests; their columns point into the frame */
    double *base;                  /* (kernels) log(TFLOPS) by the cost model, 0 without one */
    double *clocks;                /* (2 kernels) clocks of the supported kernels, then their logarithms */
    int32_t *cost_row;             /* (supported kernels) row of the cost model's factors */
    double *values;                /* (supported kernels, width of the cost model) */
    double *total;                 /* (supported kernels) score by some of the trees; capacity is a multiple of 64 */
    double *max_remaining;         /* (trees + 1) bound on the sum of the trees from each one on */
    int32_t *kernels;              /* (kernels) numbers of the supported kernels */
    tw_trees all;        /* all trees in the order of the search, at the nodes where all kernels still agree */
    tw_trees some, more; /* trees of the pruning in progress, and a buffer to reorder them */
    uint8_t *bucket;     /* (trees) */
    uint64_t *supported; /* (words) set of the supported kernels */
    tw_candidate *best;  /* (kernels) */
    tw_traversal traversal;
    int32_t batch[TW_BATCH];
    double sums[TW_BATCH];
};

/* Return the ranker's spare workspace or a new one; NULL when out of memory. The caller owns it until
 * tw_workspace_release. */
tw_workspace *tw_workspace_acquire(tw_ranker *ranker);

/* Give a workspace back to its ranker, which keeps one and frees any other. NULL is allowed. */
void tw_workspace_release(tw_ranker *ranker, tw_workspace *workspace);

/* Free a workspace. NULL is allowed. */
void tw_workspace_free(tw_workspace *workspace);

#endif
