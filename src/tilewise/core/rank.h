/* Ranking the kernels of a pool for one problem: the entry points of the core.
 *
 * `inputs` holds the columns of the problem, as many as the bytecode has inputs. Arrays stay the caller's. Functions
 * that fail return TW_NO_MEMORY or TW_TOO_LARGE (ranker.h). They may run in any number of threads at once.
 */
#ifndef TILEWISE_RANK_H
#define TILEWISE_RANK_H

#include "ranker.h"

/* Write the supported kernels, best first, ties in the pool's order, into `kernels` and `scores`, at most `most` of
 * them. `*scale` is set to the score of the scale model, 0 without one. Return how many were written, or an error. */
int32_t tw_rank(tw_ranker *ranker, const int64_t *inputs, int32_t most, int32_t *kernels, double *scores,
                double *scale);

/* Write the scores of all kernels into `scores` (n_kernels), minus infinity for unsupported kernels.
 * Return 0, or an error. */
int32_t tw_score(tw_ranker *ranker, const int64_t *inputs, double *scores);

/* Write 1 for each supported kernel and 0 for each other one into `supported` (n_kernels), unless it is NULL. Return
 * how many kernels support the problem, or an error. */
int32_t tw_supported(tw_ranker *ranker, const int64_t *inputs, uint8_t *supported);

/* Write the features of all kernels into `matrix` (n_kernels, features.count). Return 0, or an error. */
int32_t tw_features(tw_ranker *ranker, const int64_t *inputs, double *matrix);

/* Free a ranker with all its parts and its spare workspace. No call may be running. NULL is allowed. */
void tw_ranker_free(tw_ranker *ranker);

#endif
