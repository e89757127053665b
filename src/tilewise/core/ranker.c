/* Ranker: checks that its parts are consistent. ranker.h has the contract. */
#include "ranker.h"

#include <stdlib.h>
#include <string.h>

/* Return 1 if all outputs lie inside the frame and name existing partitions. */
static int outputs_valid(const tw_ranker *r, const tw_outputs *o)
{
    for (int32_t i = 0; i < o->count; i++) {
        const tw_output *at = &o->at[i];
        if (at->classes < -1 || at->classes >= r->n_classes || at->slot < 0)
            return 0;
        int32_t n = at->classes < 0 ? 1 : r->classes[at->classes].n_classes;
        if (at->slot > r->bytecode->n_slots - n)
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
            c->masks[of_kernel[k] * words + (k >> 6)] |= 1ULL << (k & 63);
    return 0;
}

int tw_ranker_check(const tw_ranker *r)
{
    if (!r->bytecode || !r->scores || r->n_kernels < 1 || r->n_kernels > TW_MAX_KERNELS ||
        r->words != (r->n_kernels + 63) / 64)
        return -1;
    for (int32_t i = 0; i < r->n_classes; i++) {
        const tw_classes *c = &r->classes[i];
        if (!c->of_kernel || !c->masks || c->n_classes < 1 || c->n_classes > r->n_kernels)
            return -1;
        for (int32_t k = 0; k < r->n_kernels; k++)
            if (c->of_kernel[k] < 0 || c->of_kernel[k] >= c->n_classes)
                return -1;
    }
    const tw_outputs more[] = {{1, (tw_output *)&r->binary_class}, {1, (tw_output *)&r->log_work}};
    const tw_outputs *all[] = {&r->rules, &r->features, &r->problem, &r->costs, &r->drivers, &more[0], &more[1]};
    for (int32_t i = 0; i < 7; i++)
        if ((i < 5 || r->cost_model) && !outputs_valid(r, all[i]))
            return -1;
    for (int32_t i = 0; i < r->problem.count; i++)
        if (r->problem.at[i].classes != -1)
            return -1;
    if (r->shortlist < 0 || (r->shortlist && !r->cost_model))
        return -1;
    if (r->features.count != r->scores->n_features || (r->scale && r->problem.count != r->scale->n_features))
        return -1;
    if (r->cost_model && (r->costs.count != r->cost_model->n_costs || r->drivers.count != r->cost_model->n_drivers ||
                          r->cost_model->n_kernels != r->n_kernels || r->log_work.classes != -1))
        return -1;
    return 0;
}
