/* Search for the best kernels without scoring all of them. */
#ifndef TILEWISE_SEARCH_H
#define TILEWISE_SEARCH_H

#include "workspace.h"

/* Sort the first `most` of `count` candidates to the front: highest score first, ties by kernel number. The order of
 * the others is unspecified. */
void tw_sort_best(tw_candidate *candidates, int32_t count, int32_t most);

/* Write the best `most` of the `count` kernels in `workspace->kernels` into the front of `workspace->best`. Scores are
 * `workspace->base` plus the trees, exactly as if all kernels had been scored. Return 0, or TW_NO_MEMORY. */
int32_t tw_search(const tw_ranker *ranker, tw_workspace *workspace, int32_t count, int32_t most);

#endif
