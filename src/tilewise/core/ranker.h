/* A ranker: all parts of a model that rank a pool's kernels, and their checks.
 *
 * A ranker does not change after tw_ranker_check, except for the spare workspace that calls exchange atomically. Any
 * number of threads may therefore use one ranker at once. rank.h has the functions that rank.
 */
#ifndef TILEWISE_RANKER_H
#define TILEWISE_RANKER_H

#include <stdatomic.h>
#include <stdint.h>

#include "bytecode.h"
#include "cost_model.h"
#include "thresholds.h"

/* The place of a result in a frame: its first slot, and the number of its partition, or -1 if all kernels share it. */
typedef struct {
    int32_t slot, classes;
} tw_output;

typedef struct {
    int32_t count;
    tw_output *at; /* (count) */
} tw_outputs;

typedef struct tw_workspace tw_workspace; /* workspace.h */

typedef struct {
    int32_t n_kernels, words, n_classes; /* words: of a set of kernels, 64 kernels each */
    int32_t shortlist; /* the trees score at most this many kernels, the best by the cost model; 0: all kernels */
    tw_bytecode *bytecode;
    tw_classes *classes;       /* (n_classes) partitions of the kernels */
    tw_outputs rules;          /* not 0 where a kernel does not support the problem */
    tw_outputs features;       /* of `scores` */
    tw_outputs problem;        /* features of `scale` */
    tw_outputs costs, drivers; /* terms of `cost_model` */
    tw_output binary_class, log_work;
    tw_forest *scores;
    tw_forest *scale;          /* NULL if the label needs none */
    tw_cost_model *cost_model; /* NULL if the label needs none */
    _Atomic(tw_workspace *) spare;
} tw_ranker;

enum { TW_MAX_KERNELS = UINT16_MAX };

/* Errors of rank.h. TW_TOO_LARGE: an integer that is computed from the problem's sizes does not fit int64. */
enum { TW_NO_MEMORY = -1, TW_TOO_LARGE = -2 };

/* Return 1 if a result is a constant, the same for every problem. */
static inline int tw_is_constant(const tw_ranker *r, tw_output at)
{
    return at.slot >= r->bytecode->n_inputs && at.slot < r->bytecode->n_inputs + r->bytecode->n_constants;
}

/* Fill a zeroed partition with a copy of `of_kernel` (n_kernels). Return 0, or -1 when out of memory. Class numbers are
 * checked later, by tw_ranker_check. The partition belongs to the ranker, also after an error. */
int tw_classes_set(tw_classes *classes, const int32_t *of_kernel, int32_t n_kernels);

/* Return 0 if all required parts are present and consistent, otherwise -1. */
int tw_ranker_check(const tw_ranker *ranker);

#endif
