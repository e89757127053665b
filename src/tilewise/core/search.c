/* The best kernels without the scores of all: trees that can tell kernels apart go first, and a kernel is out when what
 * the trees still to come can make good does not take it to the best any more. */
#include "room.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST = 32,  /* trees after which the best are guessed, */
    PART = 16,   /* or after this part of those that can tell kernels apart */
    STEP = 32,   /* trees between looks at who is out */
    KINDS = 128, /* of how much trees tell apart */
};

static int better_first(const void *a, const void *b)
{
    const tw_candidate *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : x->kernel - y->kernel;
}

void tw_sort_best(tw_candidate *c, int32_t count, int32_t most)
{
    if (most > 64) {
        qsort(c, count, sizeof *c, better_first);
        return;
    }
    for (int32_t i = 1; i < count; i++) {
        tw_candidate x = c[i];
        int32_t j = i < most ? i : most;
        if (j == most && (!most || better_first(&x, &c[most - 1]) >= 0))
            continue;
        if (j == most)
            c[i] = c[--j];
        for (; j > 0 && better_first(&x, &c[j - 1]) < 0; j--)
            c[j] = c[j - 1];
        c[j] = x;
    }
}

/* Number the trees into `order`, those first whose leaves differ most; how many have more than one leaf left. */
static int32_t order_trees(const tw_forest *f, const int32_t *at, int32_t *order, uint8_t *kind)
{
    int32_t begin[KINDS + 1] = {0};
    float top = 0.0f;
    for (int32_t t = 0; t < f->n_trees; t++) {
        const tw_bounds *b = &f->bounds[at[t]];
        top = b->most - b->least > top ? b->most - b->least : top;
    }
    const float scale = (KINDS - 2) / top;
    for (int32_t t = 0; t < f->n_trees; t++) {
        const tw_bounds *b = &f->bounds[at[t]];
        const float share = (b->most - b->least) * scale;
        kind[t] = share < KINDS - 2 ? (uint8_t)(KINDS - 2 - (int32_t)share) : 0;
        kind[t] = tw_node_feature(f->node[at[t]]) == f->n_features ? KINDS - 1 : kind[t];
        begin[kind[t] + 1]++;
    }
    const int32_t parting = f->n_trees - begin[KINDS];
    for (int32_t i = 0; i < KINDS; i++)
        begin[i + 1] += begin[i];
    for (int32_t t = 0; t < f->n_trees; t++)
        order[begin[kind[t]]++] = t;
    return parting;
}

/* Score the first `count` of `best` exactly. */
static int32_t score(const tw_ranker *r, tw_room *m, tw_candidate *best, int32_t count)
{
    const int32_t trees = r->scores->n_trees;
    memset(m->chosen, 0, r->words * sizeof *m->chosen);
    for (int32_t i = 0; i < count; i++)
        m->chosen[best[i].kernel >> 6] |= 1ull << (best[i].kernel & 63);
    tw_cuts_focus(m->scores, m->chosen);
    if (tw_walk_trees(m->scores, m->chosen, m->order, trees, m->at, &m->walk) ||
        tw_sum_leaves(&m->walk.leaves, m->scores->active, trees, m->sums))
        return TW_NO_MEMORY;
    for (int32_t i = 0; i < count; i++)
        best[i].score = m->base[best[i].kernel] + m->sums[best[i].kernel];
    return 0;
}

/* Guess the best by the trees up to number `done`, and score these exactly; `values` are then those of the last of them,
 * whom the others have to beat. */
static int32_t choose(const tw_ranker *r, tw_room *m, int32_t count, int32_t most, int32_t done)
{
    tw_walk *w = &m->walk;
    if (tw_walk_trees(m->scores, m->alive, m->order, done, m->at, w))
        return TW_NO_MEMORY;
    tw_values_of(&w->leaves, m->scores->active, m->best[0].kernel, m->values);
    memset(m->more, 0, 64 * r->words * sizeof *m->more);
    tw_add_more(&w->leaves, m->scores->active, m->values, m->more);
    for (int32_t i = 0; i < count; i++)
        m->best[i].score = m->base[m->best[i].kernel] + m->more[m->best[i].kernel];
    tw_sort_best(m->best, count, most);
    if (score(r, m, m->best, most))
        return TW_NO_MEMORY;
    tw_sort_best(m->best, most, most);
    tw_values_of(&w->leaves, m->scores->active, m->best[most - 1].kernel, m->values);
    for (int32_t i = 0; i < r->words; i++)
        m->alive[i] &= ~m->chosen[i];
    return 0;
}

/* Take out of `alive` who does not reach `least` with `ahead`; how many are left. */
static int32_t drop(const tw_ranker *r, tw_room *m, double ahead, double least)
{
    int32_t left = 0;
    for (int32_t w = 0; w < r->words; w++) {
        for (uint64_t mask = m->alive[w]; mask; mask &= mask - 1) {
            const int32_t k = 64 * w + __builtin_ctzll(mask);
            if (m->base[k] + m->more[k] + ahead < least)
                m->alive[w] &= ~(mask & -mask);
            else
                left++;
        }
    }
    return left;
}

/* Drop all kernels in play that cannot be among the best, the last of which is `last`. */
static int32_t prune(const tw_ranker *r, tw_room *m, int32_t last, int32_t done, int32_t parting, double size)
{
    const tw_forest *f = r->scores;
    const double slack = 8.0 * (f->n_trees + 4.0) * DBL_EPSILON * (size + 2.0 * f->size); /* sums, in any order */
    const double least = m->base[last] + m->more[last] - slack;
    m->ahead[parting] = 0.0;
    for (int32_t i = parting - 1; i >= done; i--)
        m->ahead[i] = m->ahead[i + 1] + (f->bounds[m->at[m->order[i]]].most - m->values[m->order[i]]);
    for (int32_t left, narrow = INT32_MAX; (left = drop(r, m, m->ahead[done], least)) && done < parting;) {
        const int32_t step = STEP < parting - done ? STEP : parting - done;
        if (left <= narrow) { /* ranges pay where the set has become much smaller */
            tw_cuts_narrow(m->scores, m->alive);
            narrow = left / 4 * 3;
        }
        if (tw_walk_trees(m->scores, m->alive, m->order + done, step, m->at, &m->walk))
            return TW_NO_MEMORY;
        tw_add_more(&m->walk.leaves, m->scores->active, m->values, m->more);
        done += step;
    }
    return 0;
}

int32_t tw_search(const tw_ranker *r, tw_room *m, int32_t count, int32_t most)
{
    const tw_forest *f = r->scores;
    double size = 0.0;
    tw_cuts_widen(m->scores);
    tw_cuts_narrow(m->scores, m->alive);
    memcpy(m->at, f->roots, f->n_trees * sizeof *m->at);
    if (tw_walk_advance(m->scores, m->at, f->n_trees, &m->walk))
        return TW_NO_MEMORY;
    const int32_t parting = order_trees(f, m->at, m->order, m->kind);
    int32_t done = parting / PART > FIRST ? parting / PART : FIRST;
    done = done < parting ? done : parting;
    for (int32_t i = 0; i < count; i++) {
        m->best[i].kernel = m->rows[i];
        size = fabs(m->base[m->rows[i]]) > size ? fabs(m->base[m->rows[i]]) : size;
    }
    int32_t found = most;
    if (most >= count) {
        if (score(r, m, m->best, count))
            return TW_NO_MEMORY;
    } else {
        if (choose(r, m, count, most, done) || prune(r, m, m->best[most - 1].kernel, done, parting, size))
            return TW_NO_MEMORY;
        for (int32_t i = 0; i < r->words; i++)
            for (uint64_t mask = m->alive[i]; mask; mask &= mask - 1)
                m->best[found++].kernel = 64 * i + __builtin_ctzll(mask);
        if (found > most && score(r, m, m->best + most, found - most))
            return TW_NO_MEMORY;
    }
    tw_sort_best(m->best, found, most);
    return 0;
}
