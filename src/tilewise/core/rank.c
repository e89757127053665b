#include "room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TW_BEHIND 1e-6 /* of model/shortlist.py */

static inline int32_t slot_of(const tw_ranker *r, tw_output at, int32_t kernel)
{
    return at.slot + (at.classes < 0 ? 0 : r->classes[at.classes].of_kernel[kernel]);
}

/* Borrow a room and run the program in it: 0, or an error. The room is to be given back in any case. */
static int32_t begin(tw_ranker *r, const int64_t *inputs, tw_room **room)
{
    tw_room *m = *room = tw_room_borrow(r);
    if (!m)
        return TW_NO_MEMORY;
    for (int32_t i = 0; i < r->program->n_inputs; i++)
        m->frame[i].i = inputs[i];
    return tw_program_run(r->program, m->frame) ? TW_TOO_LARGE : 0;
}

/* Which kernels no rule forbids. */
static void find_supported(const tw_ranker *r, tw_room *m)
{
    memset(m->alive, 255, r->words * sizeof *m->alive);
    if (r->n_kernels & 63)
        m->alive[r->words - 1] = (1ull << (r->n_kernels & 63)) - 1;
    for (int32_t i = 0; i < r->rules.count; i++) {
        tw_output at = r->rules.at[i];
        if (at.classes < 0) {
            if (m->frame[at.slot].i)
                memset(m->alive, 0, r->words * sizeof *m->alive);
            continue;
        }
        const tw_classes *c = &r->classes[at.classes];
        for (int32_t j = 0; j < c->n_classes; j++)
            if (m->frame[at.slot + j].i)
                for (int32_t w = 0; w < r->words; w++)
                    m->alive[w] &= ~c->masks[(size_t)j * r->words + w];
    }
}

/* List the kernels in play into `rows`. */
static int32_t list_alive(const tw_ranker *r, tw_room *m)
{
    int32_t count = 0;
    for (int32_t w = 0; w < r->words; w++)
        for (uint64_t mask = m->alive[w]; mask; mask &= mask - 1)
            m->rows[count++] = 64 * w + __builtin_ctzll(mask);
    return count;
}

/* Put a result of each of `count` kernels in play into every `stride`-th place of `to`. */
static void gather(const tw_ranker *r, const tw_room *m, tw_output from, int32_t count, int32_t stride, double *to)
{
    const tw_slot *values = m->frame + from.slot;
    const int32_t *of_kernel = from.classes < 0 ? NULL : r->classes[from.classes].of_kernel;
    for (int32_t i = 0; i < count; i++)
        to[(size_t)i * stride] = values[of_kernel ? of_kernel[m->rows[i]] : 0].f;
}

/* What the trees' scores of the kernels in play are added to, into `base`. */
static void find_base(const tw_ranker *r, tw_room *m, int32_t count)
{
    if (!r->estimate) {
        memset(m->base, 0, r->n_kernels * sizeof *m->base);
        return;
    }
    const tw_estimate *e = r->estimate;
    const int32_t terms = e->n_costs + e->n_drivers, width = tw_estimate_width(e);
    const tw_function *log = &r->program->math.log;
    double *logs = m->clocks + r->n_kernels;
    for (int32_t i = 0; i < terms; i++)
        gather(r, m, i < e->n_costs ? r->costs.at[i] : r->drivers.at[i - e->n_costs], count, width, m->values + 1 + i);
    for (int32_t i = 0; i < count; i++) {
        m->place[i] = tw_estimate_place(e, m->frame[slot_of(r, r->program_class, m->rows[i])].i);
        m->clocks[i] = tw_estimate_clocks(e, m->place[i], m->values + (size_t)i * width);
    }
    for (int32_t i = 0; i < count; i++)
        m->base[m->rows[i]] = tw_estimate_correction(e, m->rows[i], m->place[i], m->values + (size_t)i * width);
    log->run(log->context, m->clocks, logs, count);
    double work = m->frame[r->log_work.slot].f;
    for (int32_t i = 0; i < count; i++)
        m->base[m->rows[i]] = work - (logs[i] + m->base[m->rows[i]]);
}

static int32_t find_scale(const tw_ranker *r, tw_room *m, double *scale)
{
    static const int32_t any = 0; /* all kernels have the problem's features */
    *scale = 0.0;
    if (!r->scale)
        return 0;
    for (int32_t i = 0; i < r->scale->n_trees; i++)
        m->all.tree[i] = i;
    for (int32_t i = 0; i < r->problem.count; i++)
        if (!tw_is_constant(r, r->problem.at[i]))
            tw_cuts_find(m->scale, i);
    tw_cuts_take(m->scale, &any, 1);
    if (tw_walk_trees(m->scale, m->all.tree, r->scale->roots, r->scale->n_trees, &m->walk) ||
        tw_sum_leaves(&m->walk.leaves, r->scale->n_trees, 1, m->sums))
        return TW_NO_MEMORY;
    *scale = m->sums[0];
    return 0;
}

/* The first `most` of the `count` kernels in play, of which the `listed` best by the estimate go before all others, in the
 * order of their scores; the others follow in that of the estimate: see model/shortlist.py. */
static int32_t rank_shortlisted(const tw_ranker *r, tw_room *m, int32_t count, int32_t listed, int32_t most)
{
    tw_candidate *best = m->best;
    for (int32_t i = 0; i < count; i++)
        best[i] = (tw_candidate){m->base[m->rows[i]], m->rows[i], 0};
    tw_sort_best(best, count, listed);
    for (int32_t i = 0; i < listed; i++)
        m->rows[i] = best[i].kernel;
    const double last = best[listed - 1].score;
    if (tw_search(r, m, listed, most < listed ? most : listed)) /* leaves the other candidates where they are */
        return TW_NO_MEMORY;
    if (most > listed) {
        const double shift = best[listed - 1].score - TW_BEHIND - last;
        for (int32_t i = listed; i < count; i++)
            best[i].score += shift;
        tw_sort_best(best + listed, count - listed, most - listed);
    }
    return most;
}

/* The first `most` of the kernels in play into `best`; how many. */
static int32_t rank(const tw_ranker *r, tw_room *m, int32_t most)
{
    const int32_t count = list_alive(r, m);
    most = most < count ? most : count;
    if (most < 1)
        return 0;
    find_base(r, m, count);
    if (r->shortlist && r->shortlist < count)
        return rank_shortlisted(r, m, count, r->shortlist, most);
    return tw_search(r, m, count, most) ? TW_NO_MEMORY : most;
}

int32_t tw_rank(tw_ranker *r, const int64_t *inputs, int32_t most, int32_t *kernels, double *scores, double *scale)
{
    tw_room *m;
    int32_t found = begin(r, inputs, &m);
    if (!found)
        found = find_scale(r, m, scale);
    if (!found) {
        find_supported(r, m);
        found = rank(r, m, most);
    }
    for (int32_t i = 0; i < found; i++)
        kernels[i] = m->best[i].kernel, scores[i] = m->best[i].score;
    tw_room_give_back(r, m);
    return found;
}

int32_t tw_score(tw_ranker *r, const int64_t *inputs, double *scores)
{
    tw_room *m;
    int32_t found = begin(r, inputs, &m);
    if (!found) {
        find_supported(r, m);
        found = rank(r, m, r->n_kernels);
    }
    for (int32_t k = 0; k < r->n_kernels; k++)
        scores[k] = -INFINITY;
    for (int32_t i = 0; i < found; i++)
        scores[m->best[i].kernel] = m->best[i].score;
    tw_room_give_back(r, m);
    return found < 0 ? found : 0;
}

int32_t tw_supported(tw_ranker *r, const int64_t *inputs, uint8_t *supported)
{
    tw_room *m;
    int32_t found = begin(r, inputs, &m);
    if (!found) {
        find_supported(r, m);
        found = list_alive(r, m);
        if (supported)
            memset(supported, 0, r->n_kernels);
    }
    for (int32_t i = 0; supported && i < found; i++)
        supported[m->rows[i]] = 1;
    tw_room_give_back(r, m);
    return found;
}

int32_t tw_features(tw_ranker *r, const int64_t *inputs, double *matrix)
{
    tw_room *m;
    const int32_t failed = begin(r, inputs, &m);
    for (int32_t k = 0; !failed && k < r->n_kernels; k++)
        for (int32_t i = 0; i < r->features.count; i++)
            *matrix++ = m->frame[slot_of(r, r->features.at[i], k)].f;
    tw_room_give_back(r, m);
    return failed;
}
