/* Where one call computes: borrowed from the ranker, and given back for the next. */
#ifndef TILEWISE_ROOM_H
#define TILEWISE_ROOM_H

#include "ranker.h"
#include "walk.h"

typedef struct {
    double score;
    int32_t kernel, place; /* place: among those in play */
} tw_candidate;

/* Trees, each with a node where walks begin. */
typedef struct {
    int32_t *tree, *at; /* (trees) */
} tw_trees;

struct tw_room {
    tw_slot *frame;         /* of the program */
    tw_cuts *scores, *scale; /* of the forests, whose columns point into the frame */
    double *base, *clocks;  /* (kernels), (2 kernels) */
    int32_t *place;         /* (kernels in play) which factors of the estimate are theirs */
    double *values;         /* (kernels in play, width of the estimate) */
    double *total;          /* (kernels in play) by some of the trees; a multiple of 64 */
    double *ahead;          /* (trees + 1) what trees from there on give at most */
    int32_t *rows;          /* (kernels) those in play */
    tw_trees all, some, more; /* of all kernels in play, in the order of the search; of those that are looked at */
    uint8_t *kind;          /* (trees) */
    uint64_t *alive;        /* (words) */
    tw_candidate *best;     /* (kernels) */
    tw_walk walk;
    int32_t taken[TW_TAKEN];
    double sums[TW_TAKEN];
};

/* NULL where memory is short, which may be given back as well. */
tw_room *tw_room_borrow(tw_ranker *ranker);
void tw_room_give_back(tw_ranker *ranker, tw_room *room);
void tw_room_free(tw_room *room);

/* Put the first `most` of `count` candidates in order, best first, ties by number; the others follow anyhow. */
void tw_sort_best(tw_candidate *candidates, int32_t count, int32_t most);

/* The best `most` of the `count` kernels in play, which `rows` and `base` tell, into the first of `best`: as
 * exact as if all had been scored. 0, or TW_NO_MEMORY. */
int32_t tw_search(const tw_ranker *ranker, tw_room *room, int32_t count, int32_t most);

#endif
