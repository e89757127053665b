#include "room.h"

#include <stdlib.h>
#include <string.h>

static void cuts_free(tw_cuts *c)
{
    if (c)
        free(c->columns);
    tw_cuts_free(c);
}

void tw_room_free(tw_room *m)
{
    if (m) {
        free(m->frame);
        cuts_free(m->scores);
        cuts_free(m->scale);
        free(m->base);
        free(m->clocks);
        free(m->place);
        free(m->values);
        free(m->total);
        free(m->ahead);
        free(m->rows);
        free(m->all.tree);
        free(m->some.tree);
        free(m->more.tree);
        free(m->kind);
        free(m->alive);
        free(m->best);
        tw_walk_free(&m->walk);
        free(m);
    }
}

/* The cuts of a forest over the program's results; what no problem changes is looked at here. */
static tw_cuts *cuts_new(const tw_ranker *r, const tw_forest *forest, const tw_outputs *features, tw_room *m)
{
    tw_column *columns = malloc(features->count * sizeof *columns + 1);
    for (int32_t i = 0; columns && i < features->count; i++) {
        tw_output at = features->at[i];
        columns[i] = (tw_column){&m->frame[at.slot].f, at.classes < 0 ? NULL : &r->classes[at.classes]};
    }
    tw_cuts *cuts = columns ? tw_cuts_new(forest, columns) : NULL;
    if (!cuts)
        free(columns);
    for (int32_t i = 0; cuts && i < features->count; i++)
        if (tw_is_constant(r, features->at[i]))
            tw_cuts_find(cuts, i);
    return cuts;
}

static tw_trees trees_new(int32_t count)
{
    int32_t *tree = malloc(2 * count * sizeof *tree);
    return (tw_trees){tree, tree + count};
}

static tw_room *room_new(const tw_ranker *r)
{
    tw_room *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    int32_t trees = r->scale && r->scale->n_trees > r->scores->n_trees ? r->scale->n_trees : r->scores->n_trees;
    m->frame = calloc(r->program->n_slots + 1, sizeof *m->frame);
    m->alive = malloc(r->words * sizeof *m->alive);
    if (m->frame) {
        tw_program_begin(r->program, m->frame);
        m->scores = cuts_new(r, r->scores, &r->features, m);
        m->scale = r->scale ? cuts_new(r, r->scale, &r->problem, m) : NULL;
    }
    m->base = malloc(r->n_kernels * sizeof *m->base);
    m->clocks = malloc(2 * r->n_kernels * sizeof *m->clocks);
    m->place = malloc(r->n_kernels * sizeof *m->place);
    const size_t width = r->estimate ? tw_estimate_width(r->estimate) : 1;
    m->values = malloc(r->n_kernels * width * sizeof *m->values);
    m->total = calloc((r->n_kernels + 63) / 64 * 64, sizeof *m->total);
    m->ahead = malloc((trees + 1) * sizeof *m->ahead);
    m->rows = malloc(r->n_kernels * sizeof *m->rows);
    m->all = trees_new(trees);
    m->some = trees_new(trees);
    m->more = trees_new(trees);
    m->kind = malloc(trees * sizeof *m->kind);
    m->best = malloc(r->n_kernels * sizeof *m->best);
    if (!m->frame || !m->scores || (r->scale && !m->scale) || !m->base || !m->clocks || !m->place || !m->values || !m->total || !m->ahead || !m->rows ||
        !m->all.tree || !m->some.tree || !m->more.tree || !m->kind || !m->alive || !m->best) {
        tw_room_free(m);
        return NULL;
    }
    return m;
}

tw_room *tw_room_borrow(tw_ranker *r)
{
    tw_room *m = atomic_exchange(&r->spare, NULL);
    return m ? m : room_new(r);
}

void tw_room_give_back(tw_ranker *r, tw_room *m)
{
    if (m)
        tw_room_free(atomic_exchange(&r->spare, m));
}
