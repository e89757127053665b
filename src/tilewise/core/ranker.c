#include "ranker.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FEW 16 /* kernels up to which exact scores are summed one by one */

typedef struct {
    double score;
    int32_t kernel, row;
} candidate;

struct tw_room {
    tw_slot *frame;
    tw_column *columns;
    double *base, *clocks, *values; /* (kernels), (2 kernels), (3 trees) */
    float *more;
    uint64_t *alive;
    int32_t *rows; /* kernels in play */
    candidate *best;
    tw_walk walk;
};

static void room_free(tw_room *m)
{
    if (m) {
        free(m->frame);
        free(m->columns);
        free(m->base);
        free(m->clocks);
        free(m->values);
        free(m->more);
        free(m->alive);
        free(m->rows);
        free(m->best);
        tw_walk_free(&m->walk);
        free(m);
    }
}

static tw_room *room_new(const tw_ranker *r)
{
    tw_room *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    int32_t features = r->features.count > r->problem.count ? r->features.count : r->problem.count;
    int32_t trees = r->scale && r->scale->n_trees > r->scores->n_trees ? r->scale->n_trees : r->scores->n_trees;
    m->frame = calloc(r->program->n_slots + 1, sizeof *m->frame);
    m->columns = malloc((features + 1) * sizeof *m->columns);
    m->base = malloc(r->n_kernels * sizeof *m->base);
    m->clocks = malloc(2 * r->n_kernels * sizeof *m->clocks);
    m->values = malloc(3 * trees * sizeof *m->values);
    m->more = malloc(64 * r->words * sizeof *m->more);
    m->alive = malloc(r->words * sizeof *m->alive);
    m->rows = malloc(r->n_kernels * sizeof *m->rows);
    m->best = malloc(r->n_kernels * sizeof *m->best);
    if (!m->frame || !m->columns || !m->base || !m->clocks || !m->values || !m->more || !m->alive || !m->rows ||
        !m->best) {
        room_free(m);
        return NULL;
    }
    tw_program_begin(r->program, m->frame);
    return m;
}

static tw_room *borrow(tw_ranker *r)
{
    tw_room *m = atomic_exchange(&r->spare, NULL);
    return m ? m : room_new(r);
}

static void give_back(tw_ranker *r, tw_room *m)
{
    room_free(atomic_exchange(&r->spare, m));
}

static int outputs_sound(const tw_ranker *r, const tw_outputs *o)
{
    for (int32_t i = 0; i < o->count; i++) {
        const tw_output *at = &o->at[i];
        if (at->classes < -1 || at->classes >= r->n_classes || at->slot < 0)
            return 0;
        int32_t n = at->classes < 0 ? 1 : r->classes[at->classes].n_classes;
        if (at->slot > r->program->n_slots - n)
            return 0;
    }
    return 1;
}

int tw_classes_set(tw_classes *c, const int32_t *of_kernel, int32_t n_kernels)
{
    const size_t words = ((size_t)n_kernels + 63) / 64;
    for (int32_t k = 0; k < n_kernels; k++)
        if (of_kernel[k] >= c->n_classes && of_kernel[k] < n_kernels)
            c->n_classes = of_kernel[k] + 1;
    c->of_kernel = malloc(n_kernels * sizeof *of_kernel);
    c->masks = calloc(c->n_classes * words + 1, sizeof *c->masks);
    if (!c->of_kernel || !c->masks)
        return -1;
    memcpy(c->of_kernel, of_kernel, n_kernels * sizeof *of_kernel);
    for (int32_t k = 0; k < n_kernels; k++)
        if (of_kernel[k] >= 0 && of_kernel[k] < c->n_classes)
            c->masks[of_kernel[k] * words + (k >> 6)] |= 1ull << (k & 63);
    return 0;
}

int tw_ranker_check(const tw_ranker *r)
{
    if (!r->program || !r->scores || r->n_kernels < 1 || r->words != (r->n_kernels + 63) / 64)
        return -1;
    for (int32_t i = 0; i < r->n_classes; i++) {
        const tw_classes *c = &r->classes[i];
        if (!c->of_kernel || !c->masks || c->n_classes < 1 || c->n_classes > r->n_kernels)
            return -1;
        for (int32_t k = 0; k < r->n_kernels; k++)
            if (c->of_kernel[k] < 0 || c->of_kernel[k] >= c->n_classes)
                return -1;
    }
    const tw_outputs more[] = {{1, (tw_output *)&r->program_class}, {1, (tw_output *)&r->log_work}};
    const tw_outputs *all[] = {&r->rules, &r->features, &r->problem, &r->costs, &r->drivers, &more[0], &more[1]};
    for (int32_t i = 0; i < 7; i++)
        if ((i < 5 || r->estimate) && !outputs_sound(r, all[i]))
            return -1;
    for (int32_t i = 0; i < r->problem.count; i++)
        if (r->problem.at[i].classes != -1)
            return -1;
    if (r->features.count != r->scores->n_features || (r->scale && r->problem.count != r->scale->n_features))
        return -1;
    if (r->estimate && (r->costs.count != r->estimate->n_costs || r->drivers.count != r->estimate->n_drivers ||
                        r->estimate->n_kernels != r->n_kernels || r->log_work.classes != -1))
        return -1;
    return 0;
}

void tw_ranker_free(tw_ranker *r)
{
    if (!r)
        return;
    room_free(r->spare);
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
    tw_program_free(r->program);
    tw_forest_free(r->scores);
    tw_forest_free(r->scale);
    tw_estimate_free(r->estimate);
    free(r);
}

static inline int32_t slot_of(const tw_ranker *r, tw_output at, int32_t kernel)
{
    return at.slot + (at.classes < 0 ? 0 : r->classes[at.classes].of_kernel[kernel]);
}

static int run(const tw_ranker *r, const int64_t *inputs, tw_room *m)
{
    for (int32_t i = 0; i < r->program->n_inputs; i++)
        m->frame[i].i = inputs[i];
    return tw_program_run(r->program, m->frame) ? TW_TOO_LARGE : 0;
}

static void all_alive(const tw_ranker *r, uint64_t *alive)
{
    memset(alive, 255, r->words * sizeof *alive);
    if (r->n_kernels & 63)
        alive[r->words - 1] = (1ull << (r->n_kernels & 63)) - 1;
}

/* Which kernels no rule forbids. */
static void find_supported(const tw_ranker *r, tw_room *m)
{
    all_alive(r, m->alive);
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

/* What the trees' scores of the kernels in play are added to: `base` (rows). */
static void find_base(const tw_ranker *r, tw_room *m, int32_t count)
{
    if (!r->estimate) {
        memset(m->base, 0, count * sizeof *m->base);
        return;
    }
    const tw_estimate *e = r->estimate;
    double costs[TW_MOST_TERMS], drivers[TW_MOST_TERMS], *logs = m->clocks + r->n_kernels;
    const tw_function *log = &r->program->math.log;
    for (int32_t i = 0; i < count; i++) {
        int32_t k = m->rows[i];
        for (int32_t j = 0; j < e->n_costs; j++)
            costs[j] = m->frame[slot_of(r, r->costs.at[j], k)].f;
        for (int32_t j = 0; j < e->n_drivers; j++)
            drivers[j] = m->frame[slot_of(r, r->drivers.at[j], k)].f;
        int32_t place = tw_estimate_place(e, m->frame[slot_of(r, r->program_class, k)].i);
        tw_estimate_clocks(e, k, place, costs, drivers, &m->clocks[i], &m->base[i]);
    }
    log->run(log->context, m->clocks, logs, count);
    double work = m->frame[r->log_work.slot].f;
    for (int32_t i = 0; i < count; i++)
        m->base[i] = work - (logs[i] + m->base[i]);
}

static int walk(const tw_ranker *r, const tw_forest *forest, const tw_outputs *features, tw_room *m,
                const int32_t *rows, int32_t count)
{
    for (int32_t i = 0; i < features->count; i++) {
        tw_output at = features->at[i];
        const tw_classes *c = at.classes < 0 ? NULL : &r->classes[at.classes];
        m->columns[i] = (tw_column){&m->frame[at.slot].f, c ? c->of_kernel : NULL, c ? c->n_classes : 1};
    }
    return tw_forest_walk(forest, m->columns, rows, count, &m->walk) ? TW_NO_MEMORY : 0;
}

static int32_t find_scale(const tw_ranker *r, tw_room *m, double *scale)
{
    *scale = 0.0;
    if (!r->scale)
        return 0;
    const int32_t any = 0;
    if (walk(r, r->scale, &r->problem, m, &any, 1))
        return TW_NO_MEMORY;
    *scale = tw_score_of(&m->walk.leaves, 0, r->scale->n_trees, m->values);
    return 0;
}

static int better_first(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : x->kernel - y->kernel;
}

/* Sort by score, best first; ties by number. Lists are short or nearly sorted as a rule. */
static void sort_candidates(candidate *c, int32_t count)
{
    if (count > 64) {
        qsort(c, count, sizeof *c, better_first);
        return;
    }
    for (int32_t i = 1; i < count; i++) {
        candidate x = c[i];
        int32_t j = i;
        for (; j > 0 && better_first(&x, &c[j - 1]) < 0; j--)
            c[j] = c[j - 1];
        c[j] = x;
    }
}

/* Put the kernels in play in the order of the base: the first bits of a set are then those that may win. */
static void sort_rows(tw_room *m, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        m->best[i] = (candidate){m->base[i], m->rows[i], i};
    sort_candidates(m->best, count);
    for (int32_t i = 0; i < count; i++)
        m->base[i] = m->best[i].score, m->rows[i] = m->best[i].kernel;
}

/* Of the kernels in play, those that may be among the best, their rows into `best`: trees say how much they can make
 * good, then rounded scores tell, as far as they are exact. */
static int32_t keep_likely(const tw_ranker *r, tw_room *m, int32_t count, int32_t most)
{
    const int32_t trees = r->scores->n_trees;
    tw_spread spread = tw_spread_of(&m->walk.leaves, trees, m->values, m->values + trees, m->values + 2 * trees);
    double size = fabs(m->base[0]) > fabs(m->base[count - 1]) ? fabs(m->base[0]) : fabs(m->base[count - 1]);
    for (int32_t t = 0; t < trees; t++)
        size += fabs(m->values[t]);
    double slack = 2.0 * (trees + 4.0) * DBL_EPSILON * (size + spread.most - spread.least); /* sums, in any order */
    double least = m->base[most - 1] + (most > 1 ? spread.least : 0.0) - spread.most - 2.0 * slack;
    int32_t likely = most;
    while (likely < count && m->base[likely] >= least)
        likely++;
    tw_compare(&m->walk.leaves, likely, m->values, m->more);
    /* a float for each tree, none of whose sums leaves what trees can make good: each is rounded by half an epsilon, and
     * so is its sum */
    slack += (trees + 2.0) * FLT_EPSILON * (spread.most - spread.least);
    for (int32_t i = 0; i < likely; i++)
        m->best[i] = (candidate){m->base[i] + m->more[i], m->rows[i], i};
    sort_candidates(m->best, likely);
    least = m->best[most - 1].score - 2.0 * slack;
    int32_t kept = most;
    while (kept < likely && m->best[kept].score >= least)
        kept++;
    return kept;
}

/* Exact scores of the first `kept` of `best`. */
static int32_t add_scores(const tw_ranker *r, tw_room *m, int32_t count, int32_t kept)
{
    if (kept > FEW && tw_score_all(&m->walk.leaves, count, r->scores->n_trees, m->clocks))
        return TW_NO_MEMORY;
    for (int32_t i = 0; i < kept; i++) {
        int32_t row = m->best[i].row;
        double sum = kept > FEW ? m->clocks[row] : tw_score_of(&m->walk.leaves, row, r->scores->n_trees, m->values);
        m->best[i].score = m->base[row] + sum;
    }
    return 0;
}

static int32_t rank(const tw_ranker *r, tw_room *m, const int64_t *inputs, int32_t most, int32_t *kernels,
                    double *scores, double *scale)
{
    int failed = run(r, inputs, m);
    if (!failed)
        failed = find_scale(r, m, scale);
    if (failed)
        return failed;
    find_supported(r, m);
    int32_t count = list_alive(r, m), kept = count;
    most = most < count ? most : count;
    if (most < 1)
        return 0;
    find_base(r, m, count);
    sort_rows(m, count);
    if (walk(r, r->scores, &r->features, m, m->rows, count))
        return TW_NO_MEMORY;
    for (int32_t i = 0; i < count; i++)
        m->best[i] = (candidate){0.0, m->rows[i], i};
    if (most < count)
        kept = keep_likely(r, m, count, most);
    if (add_scores(r, m, count, kept))
        return TW_NO_MEMORY;
    sort_candidates(m->best, kept);
    for (int32_t i = 0; i < most; i++)
        kernels[i] = m->best[i].kernel, scores[i] = m->best[i].score;
    return most;
}

int32_t tw_rank(tw_ranker *r, const int64_t *inputs, int32_t most, int32_t *kernels, double *scores, double *scale)
{
    tw_room *m = borrow(r);
    if (!m)
        return TW_NO_MEMORY;
    int32_t found = rank(r, m, inputs, most, kernels, scores, scale);
    give_back(r, m);
    return found;
}

int32_t tw_score(tw_ranker *r, const int64_t *inputs, double *scores)
{
    tw_room *m = borrow(r);
    if (!m)
        return TW_NO_MEMORY;
    int32_t failed = run(r, inputs, m);
    if (!failed) {
        all_alive(r, m->alive);
        int32_t count = list_alive(r, m);
        find_base(r, m, count);
        failed = walk(r, r->scores, &r->features, m, m->rows, count);
        if (!failed && tw_score_all(&m->walk.leaves, count, r->scores->n_trees, m->clocks))
            failed = TW_NO_MEMORY;
        for (int32_t i = 0; i < count && !failed; i++)
            scores[i] = m->base[i] + m->clocks[i];
    }
    give_back(r, m);
    return failed;
}

int32_t tw_supported(tw_ranker *r, const int64_t *inputs, uint8_t *supported)
{
    tw_room *m = borrow(r);
    if (!m)
        return TW_NO_MEMORY;
    int32_t found = run(r, inputs, m);
    if (!found) {
        find_supported(r, m);
        found = list_alive(r, m);
        if (supported)
            memset(supported, 0, r->n_kernels);
        for (int32_t i = 0; supported && i < found; i++)
            supported[m->rows[i]] = 1;
    }
    give_back(r, m);
    return found;
}

int32_t tw_features(tw_ranker *r, const int64_t *inputs, double *matrix)
{
    tw_room *m = borrow(r);
    if (!m)
        return TW_NO_MEMORY;
    int32_t failed = run(r, inputs, m);
    for (int32_t k = 0; !failed && k < r->n_kernels; k++)
        for (int32_t i = 0; i < r->features.count; i++)
            *matrix++ = m->frame[slot_of(r, r->features.at[i], k)].f;
    give_back(r, m);
    return failed;
}
