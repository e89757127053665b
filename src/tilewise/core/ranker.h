/* A model ready to rank a pool's kernels for a problem: rules, features, estimate and trees, nothing left to look up.
 *
 * Immutable once made, but for rooms to compute in that calls borrow and return: any number of threads may ask at once.
 */
#ifndef TILEWISE_RANKER_H
#define TILEWISE_RANKER_H

#include <stdatomic.h>
#include <stdint.h>

#include "cuts.h"
#include "estimate.h"
#include "program.h"

/* Where a program leaves a result: its first slot, and the number of its partition (-1: one value for all kernels). */
typedef struct {
    int32_t slot, classes;
} tw_output;

typedef struct {
    int32_t count;
    tw_output *at;
} tw_outputs;

typedef struct tw_room tw_room;

typedef struct {
    int32_t n_kernels, words, n_classes;
    int32_t shortlist; /* trees score so many kernels at most, the best by `estimate`; 0: all */
    tw_program *program;
    tw_classes *classes;  /* (n_classes) partitions of the kernels */
    tw_outputs rules;     /* not 0 where a kernel does not support the problem */
    tw_outputs features;  /* of `scores` */
    tw_outputs problem;   /* features of `scale` */
    tw_outputs costs, drivers; /* of `estimate` */
    tw_output program_class, log_work;
    tw_forest *scores;
    tw_forest *scale;      /* NULL: none */
    tw_estimate *estimate; /* NULL: none */
    _Atomic(tw_room *) spare;
} tw_ranker;

/* Whether no problem changes a result. */
static inline int tw_is_constant(const tw_ranker *r, tw_output at)
{
    return at.slot >= r->program->n_inputs && at.slot < r->program->n_inputs + r->program->n_constants;
}

enum { TW_MOST_KERNELS = UINT16_MAX };
enum { TW_NO_MEMORY = -1, TW_TOO_LARGE = -2 }; /* too large: an integer of the problem's own leaves int64 */

/* Set up a partition, copying `of_kernel` (n_kernels). 0, or -1 where memory is short; what the numbers are
 * tw_ranker_check sees. */
int tw_classes_set(tw_classes *classes, const int32_t *of_kernel, int32_t n_kernels);

/* Check that all parts fit together and are there; 0 if so. The ranker then owns them. */
int tw_ranker_check(const tw_ranker *ranker);
void tw_ranker_free(tw_ranker *ranker);

/* The supported kernels, best first, ties in the pool's order: at most `most` of them into `kernels` and `scores`.
 * `inputs`: the problem's columns. `scale`: what the scale model says, 0 without. How many, or an error above. */
int32_t tw_rank(tw_ranker *ranker, const int64_t *inputs, int32_t most, int32_t *kernels, double *scores,
                double *scale);

/* Scores of all kernels, minus infinity where they do not support the problem. 0, or an error above. */
int32_t tw_score(tw_ranker *ranker, const int64_t *inputs, double *scores);

/* Which kernels support the problem, a byte each (NULL: not wanted). How many, or an error above. */
int32_t tw_supported(tw_ranker *ranker, const int64_t *inputs, uint8_t *supported);

/* The features of all kernels: (n_kernels, features.count). 0, or an error above. */
int32_t tw_features(tw_ranker *ranker, const int64_t *inputs, double *matrix);

#endif
