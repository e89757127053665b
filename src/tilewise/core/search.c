/* The best kernels without the scores of all: trees that can tell kernels apart go first, and a kernel is out when what
 * the trees still to come can make good does not take it to the best any more. */
#include "room.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FEW = 512,   /* trees at most that are walked with all kernels taken: a guess and its score would take half as long */
    FIRST = 32,  /* trees after which the best are guessed, */
    PART = 2,    /* or after this part of those that can tell kernels apart */
    STEP = 64,   /* trees between looks at who is out */
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

/* Put `count` trees with their nodes into `to`, those first whose leaves differ most; how many have more than one leaf
 * left. `kind` (count) is room. */
static int32_t order_trees(const tw_forest *f, tw_trees from, int32_t count, uint8_t *kind, tw_trees to)
{
    int32_t begin[KINDS + 1] = {0};
    float top = 0.0f;
    for (int32_t i = 0; i < count; i++) {
        const tw_bounds *b = &f->bounds[from.at[i]];
        top = b->most - b->least > top ? b->most - b->least : top;
    }
    const float scale = (KINDS - 2) / top;
    for (int32_t i = 0; i < count; i++) {
        const tw_bounds *b = &f->bounds[from.at[i]];
        const float share = (b->most - b->least) * scale;
        kind[i] = share < KINDS - 2 ? (uint8_t)(KINDS - 2 - (int32_t)share) : 0;
        kind[i] = tw_node_feature(f->node[from.at[i]]) == f->n_features ? KINDS - 1 : kind[i];
        begin[kind[i] + 1]++;
    }
    const int32_t parting = count - begin[KINDS];
    for (int32_t i = 0; i < KINDS; i++)
        begin[i + 1] += begin[i];
    for (int32_t i = 0; i < count; i++) {
        const int32_t place = begin[kind[i]]++;
        to.tree[place] = from.tree[i], to.at[place] = from.at[i];
    }
    return parting;
}

static int32_t least_of(int32_t a, int32_t b) { return a < b ? a : b; }

/* Score candidates exactly. */
static int32_t score(const tw_ranker *r, tw_room *m, tw_candidate *best, int32_t count)
{
    const int32_t trees = r->scores->n_trees;
    for (; count > 0; best += TW_TAKEN, count -= TW_TAKEN) {
        const int32_t n = least_of(count, TW_TAKEN);
        for (int32_t i = 0; i < n; i++)
            m->taken[i] = best[i].kernel;
        tw_cuts_take(m->scores, m->taken, n);
        if (tw_walk_trees(m->scores, m->all.tree, m->all.at, trees, &m->walk) ||
            tw_sum_leaves(&m->walk.leaves, trees, n, m->sums))
            return TW_NO_MEMORY;
        for (int32_t i = 0; i < n; i++)
            best[i].score = m->base[best[i].kernel] + m->sums[i];
    }
    return 0;
}

/* Guess the best by the first `done` trees, and score these exactly: the others have to beat the last of them. */
static int32_t choose(const tw_ranker *r, tw_room *m, int32_t count, int32_t most, int32_t done)
{
    for (int32_t first = 0; first < count; first += TW_TAKEN) {
        const int32_t n = least_of(count - first, TW_TAKEN);
        if (count > TW_TAKEN)
            tw_cuts_take(m->scores, m->rows + first, n);
        if (tw_walk_trees(m->scores, m->all.tree, m->all.at, done, &m->walk))
            return TW_NO_MEMORY;
        for (int32_t i = first; i < first + n; i++)
            m->total[i] = m->base[m->rows[i]];
        tw_add_leaves(&m->walk.leaves, n, m->total + first);
    }
    for (int32_t i = 0; i < count; i++)
        m->best[i] = (tw_candidate){m->total[i], m->rows[i], i};
    tw_sort_best(m->best, count, most);
    for (int32_t i = 0; i < most; i++)
        m->total[m->best[i].place] = -INFINITY; /* out of the search */
    if (score(r, m, m->best, most))
        return TW_NO_MEMORY;
    tw_sort_best(m->best, most, most);
    return 0;
}

/* What `count` trees give at most, from each on, into `ahead` (count + 1), where `rest` is what others do. */
static void look_ahead(const tw_forest *f, const int32_t *at, int32_t count, double rest, double *ahead)
{
    ahead[count] = rest;
    for (int32_t i = count - 1; i >= 0; i--)
        ahead[i] = ahead[i + 1] + f->bounds[at[i]].most;
}

/* Of `count` kernels, at most TW_TAKEN, with `total` by the first `done` trees: those that reach `least`, as far as
 * bounds can tell, go to `best` from place `found` on. How many are there then. */
static int32_t prune(const tw_ranker *r, tw_room *m, const int32_t *kernels, double *total, int32_t count, double least,
                     int32_t done, int32_t found)
{
    const tw_forest *f = r->scores;
    int32_t trees = f->n_trees - done, pays = count;
    memcpy(m->some.tree, m->all.tree + done, trees * sizeof *m->some.tree);
    memcpy(m->some.at, m->all.at + done, trees * sizeof *m->some.at);
    memcpy(m->taken, kernels, count * sizeof *kernels);
    look_ahead(f, m->some.at, trees, 0.0, m->ahead);
    for (done = 0;;) {
        int32_t left = 0;
        for (int32_t i = 0; i < count; i++)
            left += !(total[i] + m->ahead[done] < least);
        if (!left)
            return found;
        if (left <= pays || done == trees) {
            for (int32_t i = 0, to = 0; to < left; i++) {
                m->taken[to] = m->taken[i], total[to] = total[i];
                to += !(total[i] + m->ahead[done] < least);
            }
            count = left;
        }
        if (done == trees)
            break;
        if (left <= pays) { /* fewer kernels, narrower ranges */
            const tw_trees ahead = {m->some.tree + done, m->some.at + done};
            tw_cuts_take(m->scores, m->taken, count);
            if (tw_walk_advance(m->scores, ahead.at, trees - done, &m->walk))
                return TW_NO_MEMORY;
            const int32_t parting = order_trees(f, ahead, trees - done, m->kind, m->more);
            look_ahead(f, m->more.at + parting, trees - done - parting, m->ahead[trees], m->ahead);
            look_ahead(f, m->more.at, parting, m->ahead[0], m->ahead);
            const tw_trees other = m->some;
            m->some = m->more, m->more = other;
            trees = parting, done = 0, pays = count / 2;
            continue;
        }
        const int32_t step = least_of(STEP, trees - done);
        if (tw_walk_trees(m->scores, m->some.tree + done, m->some.at + done, step, &m->walk))
            return TW_NO_MEMORY;
        tw_add_leaves(&m->walk.leaves, count, total);
        done += step;
    }
    for (int32_t i = 0; i < count; i++)
        m->best[found++].kernel = m->taken[i];
    return found;
}

/* The best `most` of `count` kernels, which are more: a guess first, then all that bounds do not tell to be behind it. */
static int32_t guess_and_prune(const tw_ranker *r, tw_room *m, int32_t count, int32_t most)
{
    const tw_forest *f = r->scores;
    double size = 0.0;
    if (count > TW_TAKEN)
        tw_cuts_take_all(m->scores);
    else
        tw_cuts_take(m->scores, m->rows, count);
    memcpy(m->some.tree, m->all.tree, f->n_trees * sizeof *m->some.tree);
    memcpy(m->some.at, m->all.at, f->n_trees * sizeof *m->some.at);
    if (tw_walk_advance(m->scores, m->some.at, f->n_trees, &m->walk))
        return TW_NO_MEMORY;
    const int32_t parting = order_trees(f, m->some, f->n_trees, m->kind, m->all);
    const int32_t done = least_of(parting / PART > FIRST ? parting / PART : FIRST, parting);
    if (choose(r, m, count, most, done))
        return TW_NO_MEMORY;
    for (int32_t i = 0; i < count; i++)
        size = fabs(m->base[m->rows[i]]) > size ? fabs(m->base[m->rows[i]]) : size;
    const double slack = 8.0 * (f->n_trees + 4.0) * DBL_EPSILON * (size + 2.0 * f->size); /* sums, in any order */
    int32_t found = most;
    for (int32_t i = 0; i < count && found >= 0; i += TW_TAKEN)
        found = prune(r, m, m->rows + i, m->total + i, least_of(count - i, TW_TAKEN), m->best[most - 1].score - slack,
                      done, found);
    if (found < 0 || score(r, m, m->best + most, found - most))
        return TW_NO_MEMORY;
    return found;
}

/* Look at the features that a problem changes; `once`: kernels will be taken once. */
static void find_levels(const tw_ranker *r, tw_cuts *cuts, int once)
{
    for (int32_t i = 0; i < r->features.count; i++)
        if (!tw_is_constant(r, r->features.at[i])) {
            if (once)
                tw_cuts_find_later(cuts, i);
            else
                tw_cuts_find(cuts, i);
        }
}

int32_t tw_search(const tw_ranker *r, tw_room *m, int32_t count, int32_t most)
{
    const tw_forest *f = r->scores;
    const int once = count <= TW_TAKEN && (most >= count || f->n_trees <= FEW);
    int32_t found = count;
    find_levels(r, m->scores, once);
    for (int32_t i = 0; i < f->n_trees; i++)
        m->all.tree[i] = i, m->all.at[i] = f->roots[i];
    if (once || most >= count) {
        for (int32_t i = 0; i < count; i++)
            m->best[i].kernel = m->rows[i];
        if (score(r, m, m->best, count))
            return TW_NO_MEMORY;
    } else
        found = guess_and_prune(r, m, count, most);
    if (found < 0)
        return TW_NO_MEMORY;
    tw_sort_best(m->best, found, most);
    return 0;
}
