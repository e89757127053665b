/* Workspace: allocation and reuse. workspace.h has the contract. */
#include "workspace.h"

#include <stdlib.h>
#include <string.h>

/* Free thresholds together with their columns, which the workspace owns. */
static void thresholds_free(tw_thresholds *c)
{
    if (c)
        free(c->columns);
    tw_thresholds_free(c);
}

void tw_workspace_free(tw_workspace *ws)
{
    if (ws) {
        free(ws->frame);
        thresholds_free(ws->scores);
        thresholds_free(ws->scale);
        free(ws->base);
        free(ws->clocks);
        free(ws->cost_row);
        free(ws->values);
        free(ws->total);
        free(ws->max_remaining);
        free(ws->kernels);
        free(ws->all.tree);
        free(ws->some.tree);
        free(ws->more.tree);
        free(ws->bucket);
        free(ws->supported);
        free(ws->best);
        tw_traversal_free(&ws->traversal);
        free(ws);
    }
}

/* Return new thresholds whose columns point into the frame; levels of constant features are found here, once. NULL
 * when out of memory. thresholds_free releases them. */
static tw_thresholds *thresholds_new(const tw_ranker *r, const tw_forest *forest, const tw_outputs *features,
                                     tw_workspace *ws)
{
    tw_column *columns = malloc(features->count * sizeof *columns + 1);
    for (int32_t i = 0; columns && i < features->count; i++) {
        tw_output at = features->at[i];
        columns[i] = (tw_column){&ws->frame[at.slot].f, at.classes < 0 ? NULL : &r->classes[at.classes]};
    }
    tw_thresholds *thresholds = columns ? tw_thresholds_new(forest, columns) : NULL;
    if (!thresholds)
        free(columns);
    for (int32_t i = 0; thresholds && i < features->count; i++)
        if (tw_is_constant(r, features->at[i]))
            tw_thresholds_find_levels(thresholds, i);
    return thresholds;
}

/* Return two lists of `count` numbers in one allocation, which the caller frees by `tree`; `tree` is NULL when out
 * of memory. */
static tw_trees trees_new(int32_t count)
{
    int32_t *tree = malloc(2 * (size_t)count * sizeof *tree);
    return (tw_trees){tree, tree ? tree + count : NULL};
}

/* Return a new workspace with loaded constants, which the caller frees; NULL when out of memory. */
static tw_workspace *workspace_new(const tw_ranker *r)
{
    tw_workspace *ws = calloc(1, sizeof *ws);
    if (!ws)
        return NULL;
    int32_t trees = r->scale && r->scale->n_trees > r->scores->n_trees ? r->scale->n_trees : r->scores->n_trees;
    ws->frame = calloc(r->bytecode->n_slots + 1, sizeof *ws->frame);
    ws->supported = malloc(r->words * sizeof *ws->supported);
    if (ws->frame) {
        tw_bytecode_load_constants(r->bytecode, ws->frame);
        ws->scores = thresholds_new(r, r->scores, &r->features, ws);
        ws->scale = r->scale ? thresholds_new(r, r->scale, &r->problem, ws) : NULL;
    }
    ws->base = malloc(r->n_kernels * sizeof *ws->base);
    ws->clocks = malloc(2 * (size_t)r->n_kernels * sizeof *ws->clocks);
    ws->cost_row = malloc(r->n_kernels * sizeof *ws->cost_row);
    const size_t width = r->cost_model ? tw_cost_model_width(r->cost_model) : 1;
    ws->values = malloc(r->n_kernels * width * sizeof *ws->values);
    ws->total = calloc((size_t)r->words * 64, sizeof *ws->total);
    ws->max_remaining = malloc((trees + 1) * sizeof *ws->max_remaining);
    ws->kernels = malloc(r->n_kernels * sizeof *ws->kernels);
    ws->all = trees_new(trees);
    ws->some = trees_new(trees);
    ws->more = trees_new(trees);
    ws->bucket = malloc(trees * sizeof *ws->bucket);
    ws->best = malloc(r->n_kernels * sizeof *ws->best);
    if (!ws->frame || !ws->scores || (r->scale && !ws->scale) || !ws->base || !ws->clocks || !ws->cost_row ||
        !ws->values || !ws->total || !ws->max_remaining || !ws->kernels || !ws->all.tree || !ws->some.tree ||
        !ws->more.tree || !ws->bucket || !ws->supported || !ws->best) {
        tw_workspace_free(ws);
        return NULL;
    }
    return ws;
}

tw_workspace *tw_workspace_acquire(tw_ranker *r)
{
    tw_workspace *ws = atomic_exchange(&r->spare, NULL);
    return ws ? ws : workspace_new(r);
}

void tw_workspace_release(tw_ranker *r, tw_workspace *ws)
{
    if (ws)
        tw_workspace_free(atomic_exchange(&r->spare, ws));
}
