/* Ranking: rules, cost model, shortlist and search for one problem. rank.h has the contract. */
#include "rank.h"
#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TW_SHORTLIST_GAP 1e-6 /* BEHIND in model/_shortlist.py */

/* Return the slot that holds an output's value for a kernel. */
static inline int32_t slot_of(const tw_ranker *r, tw_output at, int32_t kernel)
{
    return at.slot + (at.classes < 0 ? 0 : r->classes[at.classes].of_kernel[kernel]);
}

/* Acquire a workspace and run the bytecode in it. Return 0 or an error. The caller releases `*workspace` in any
 * case. */
static int32_t start(tw_ranker *r, const int64_t *inputs, tw_workspace **workspace)
{
    tw_workspace *ws = *workspace = tw_workspace_acquire(r);
    if (!ws)
        return TW_NO_MEMORY;
    for (int32_t i = 0; i < r->bytecode->n_inputs; i++)
        ws->frame[i].i = inputs[i];
    return tw_bytecode_run(r->bytecode, ws->frame) ? TW_TOO_LARGE : 0;
}

/* Write the set of kernels that no rule excludes into `supported`. */
static void find_supported(const tw_ranker *r, tw_workspace *ws)
{
    memset(ws->supported, 255, r->words * sizeof *ws->supported);
    if (r->n_kernels & 63)
        ws->supported[r->words - 1] = (1ULL << (r->n_kernels & 63)) - 1;
    for (int32_t i = 0; i < r->rules.count; i++) {
        tw_output at = r->rules.at[i];
        if (at.classes < 0) {
            if (ws->frame[at.slot].i)
                memset(ws->supported, 0, r->words * sizeof *ws->supported);
            continue;
        }
        const tw_classes *c = &r->classes[at.classes];
        for (int32_t j = 0; j < c->n_classes; j++)
            if (ws->frame[at.slot + j].i)
                for (int32_t w = 0; w < r->words; w++)
                    ws->supported[w] &= ~c->masks[(size_t)j * r->words + w];
    }
}

/* Write the numbers of the supported kernels into `kernels`. Return how many there are. */
static int32_t list_supported(const tw_ranker *r, tw_workspace *ws)
{
    int32_t count = 0;
    for (int32_t w = 0; w < r->words; w++)
        for (uint64_t mask = ws->supported[w]; mask; mask &= mask - 1)
            ws->kernels[count++] = 64 * w + __builtin_ctzll(mask);
    return count;
}

/* Write an output of each of `count` supported kernels to every `stride`-th element of `to`. */
static void gather(const tw_ranker *r, const tw_workspace *ws, tw_output from, int32_t count, int32_t stride,
                   double *to)
{
    const tw_slot *values = ws->frame + from.slot;
    const int32_t *of_kernel = from.classes < 0 ? NULL : r->classes[from.classes].of_kernel;
    for (int32_t i = 0; i < count; i++)
        to[(size_t)i * stride] = values[of_kernel ? of_kernel[ws->kernels[i]] : 0].f;
}

/* Write the score that the trees add to into `base`: log(TFLOPS) by the cost model, or 0 without one. */
static void compute_base(const tw_ranker *r, tw_workspace *ws, int32_t count)
{
    if (!r->cost_model) {
        memset(ws->base, 0, r->n_kernels * sizeof *ws->base);
        return;
    }
    const tw_cost_model *e = r->cost_model;
    const int32_t terms = e->n_costs + e->n_drivers, width = tw_cost_model_width(e);
    const tw_function *log = &r->bytecode->math.log;
    double *logs = ws->clocks + r->n_kernels;
    for (int32_t i = 0; i < terms; i++)
        gather(r, ws, i < e->n_costs ? r->costs.at[i] : r->drivers.at[i - e->n_costs], count, width,
               ws->values + 1 + i);
    for (int32_t i = 0; i < count; i++) {
        ws->cost_row[i] = tw_cost_model_row(e, ws->frame[slot_of(r, r->binary_class, ws->kernels[i])].i);
        ws->clocks[i] = tw_cost_model_clocks(e, ws->cost_row[i], ws->values + (size_t)i * width);
    }
    for (int32_t i = 0; i < count; i++)
        ws->base[ws->kernels[i]] =
            tw_cost_model_correction(e, ws->kernels[i], ws->cost_row[i], ws->values + (size_t)i * width);
    log->run(log->context, ws->clocks, logs, count);
    double work = ws->frame[r->log_work.slot].f;
    for (int32_t i = 0; i < count; i++)
        ws->base[ws->kernels[i]] = work - (logs[i] + ws->base[ws->kernels[i]]);
}

/* Write the score of the scale model into `*scale`, 0 without one. Return 0 or an error. */
static int32_t compute_scale(const tw_ranker *r, tw_workspace *ws, double *scale)
{
    static const int32_t any = 0; /* the problem's features are equal for all kernels, so any kernel serves */
    *scale = 0.0;
    if (!r->scale)
        return 0;
    for (int32_t i = 0; i < r->scale->n_trees; i++)
        ws->all.tree[i] = i;
    for (int32_t i = 0; i < r->problem.count; i++)
        if (!tw_is_constant(r, r->problem.at[i]))
            tw_thresholds_find_levels(ws->scale, i);
    tw_thresholds_set_batch(ws->scale, &any, 1);
    if (tw_traverse_trees(ws->scale, ws->all.tree, r->scale->roots, r->scale->n_trees, &ws->traversal) ||
        tw_sum_leaves(&ws->traversal.leaves, r->scale->n_trees, 1, ws->sums))
        return TW_NO_MEMORY;
    *scale = ws->sums[0];
    return 0;
}

/* Rank the `listed` best kernels by the cost model, with the trees, and the others behind them in the cost model's
 * order, as model/_shortlist.py does. Return `most` or an error. */
static int32_t rank_shortlisted(const tw_ranker *r, tw_workspace *ws, int32_t count, int32_t listed, int32_t most)
{
    tw_candidate *best = ws->best;
    for (int32_t i = 0; i < count; i++)
        best[i] = (tw_candidate){ws->base[ws->kernels[i]], ws->kernels[i], 0};
    tw_sort_best(best, count, listed);
    for (int32_t i = 0; i < listed; i++)
        ws->kernels[i] = best[i].kernel;
    const double last = best[listed - 1].score;
    if (tw_search(r, ws, listed, most < listed ? most : listed)) /* does not move the other candidates */
        return TW_NO_MEMORY;
    if (most > listed) {
        const double shift = best[listed - 1].score - TW_SHORTLIST_GAP - last;
        for (int32_t i = listed; i < count; i++)
            best[i].score += shift;
        tw_sort_best(best + listed, count - listed, most - listed);
    }
    return most;
}

/* Write the best `most` supported kernels into `best`. Return how many there are, or an error. */
static int32_t rank(const tw_ranker *r, tw_workspace *ws, int32_t most)
{
    const int32_t count = list_supported(r, ws);
    most = most < count ? most : count;
    if (most < 1)
        return 0;
    compute_base(r, ws, count);
    if (r->shortlist && r->shortlist < count)
        return rank_shortlisted(r, ws, count, r->shortlist, most);
    return tw_search(r, ws, count, most) ? TW_NO_MEMORY : most;
}

int32_t tw_rank(tw_ranker *r, const int64_t *inputs, int32_t most, int32_t *kernels, double *scores, double *scale)
{
    tw_workspace *ws;
    int32_t found = start(r, inputs, &ws);
    if (!found)
        found = compute_scale(r, ws, scale);
    if (!found) {
        find_supported(r, ws);
        found = rank(r, ws, most);
    }
    for (int32_t i = 0; i < found; i++)
        kernels[i] = ws->best[i].kernel, scores[i] = ws->best[i].score;
    tw_workspace_release(r, ws);
    return found;
}

int32_t tw_score(tw_ranker *r, const int64_t *inputs, double *scores)
{
    tw_workspace *ws;
    int32_t found = start(r, inputs, &ws);
    if (!found) {
        find_supported(r, ws);
        found = rank(r, ws, r->n_kernels);
    }
    for (int32_t k = 0; k < r->n_kernels; k++)
        scores[k] = -INFINITY;
    for (int32_t i = 0; i < found; i++)
        scores[ws->best[i].kernel] = ws->best[i].score;
    tw_workspace_release(r, ws);
    return found < 0 ? found : 0;
}

int32_t tw_supported(tw_ranker *r, const int64_t *inputs, uint8_t *supported)
{
    tw_workspace *ws;
    int32_t found = start(r, inputs, &ws);
    if (!found) {
        find_supported(r, ws);
        found = list_supported(r, ws);
        if (supported)
            memset(supported, 0, r->n_kernels);
    }
    for (int32_t i = 0; supported && i < found; i++)
        supported[ws->kernels[i]] = 1;
    tw_workspace_release(r, ws);
    return found;
}

int32_t tw_features(tw_ranker *r, const int64_t *inputs, double *matrix)
{
    tw_workspace *ws;
    const int32_t failed = start(r, inputs, &ws);
    for (int32_t k = 0; !failed && k < r->n_kernels; k++)
        for (int32_t i = 0; i < r->features.count; i++)
            *matrix++ = ws->frame[slot_of(r, r->features.at[i], k)].f;
    tw_workspace_release(r, ws);
    return failed;
}

void tw_ranker_free(tw_ranker *r)
{
    if (!r)
        return;
    tw_workspace_free(r->spare);
    for (int32_t i = 0; r->classes && i < r->n_classes; i++) {
        free(r->classes[i].of_kernel);
        free(r->classes[i].masks);
    }
    free(r->classes);
    free(r->rules.at);
    free(r->features.at);
    free(r->problem.at);
    free(r->costs.at);
    free(r->drivers.at);
    tw_bytecode_free(r->bytecode);
    tw_forest_free(r->scores);
    tw_forest_free(r->scale);
    tw_cost_model_free(r->cost_model);
    free(r);
}
