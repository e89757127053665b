/* Cost model: evaluation with the sums in NumPy's order. cost_model.h has the contract. */
#include "cost_model.h"
#include "clones.h"
#include "copy.h"

tw_cost_model *tw_cost_model_new(int32_t n_binaries, int32_t n_costs, int32_t n_drivers, int32_t n_kernels,
                                 tw_limits limits, const int64_t *binaries, const double *factors, const double *centre,
                                 const double *scale, const double *weights)
{
    if (n_binaries < 1 || n_costs < 0 || n_drivers < 0 || n_kernels < 1 || n_costs + n_drivers > TW_MAX_TERMS)
        return NULL;
    tw_cost_model *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    size_t n_rows = (size_t)n_binaries + 1;
    *e = (tw_cost_model){n_binaries, n_costs, n_drivers, n_kernels, limits, NULL, NULL, NULL, NULL, NULL};
    const size_t columns = tw_cost_model_width(e);
    e->binaries = tw_copy(binaries, n_binaries, sizeof *binaries);
    e->factors = tw_copy(factors, n_rows * n_costs, sizeof *factors);
    e->centre = tw_copy(centre, n_costs, sizeof *centre);
    e->inverse_scale = tw_copy(scale, n_costs, sizeof *scale);
    e->weights = malloc(n_kernels * n_rows * columns * sizeof *weights);
    if (!e->binaries || !e->factors || !e->centre || !e->inverse_scale || !e->weights) {
        tw_cost_model_free(e);
        return NULL;
    }
    for (int32_t i = 0; i < n_costs; i++)
        e->inverse_scale[i] = 1.0 / e->inverse_scale[i];
    for (size_t k = 0; k < (size_t)n_kernels; k++)
        for (size_t p = 0; p < n_rows; p++)
            memcpy(e->weights + (p * n_kernels + k) * columns, weights + (k * n_rows + p) * columns,
                   columns * sizeof *weights);
    return e;
}

void tw_cost_model_free(tw_cost_model *e)
{
    if (e) {
        free(e->binaries);
        free(e->factors);
        free(e->centre);
        free(e->inverse_scale);
        free(e->weights);
        free(e);
    }
}

int32_t tw_cost_model_row(const tw_cost_model *e, int64_t program)
{
    for (int32_t i = 0; i < e->n_binaries; i++)
        if (e->binaries[i] == program)
            return i;
    return e->n_binaries;
}

/* Return the sum of x[i] * y[i], added in the order in which NumPy sums up to 128 numbers. */
static inline double sum_of_products(const double *x, const double *y, int32_t n)
{
    double total = 0.0, part[8];
    int32_t i = 0;
    if (n >= 8) {
        for (int32_t j = 0; j < 8; j++)
            part[j] = x[j] * y[j];
        for (i = 8; i < n - n % 8; i += 8)
            for (int32_t j = 0; j < 8; j++)
                part[j] += x[i + j] * y[i + j];
        total = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
    }
    for (; i < n; i++)
        total += x[i] * y[i];
    return total;
}

/* Return x limited to -most and most. */
static inline double clip(double x, double most)
{
    return x < -most ? -most : x > most ? most : x;
}

TW_CLONES double tw_cost_model_clocks(const tw_cost_model *e, int32_t row, double *values)
{
    const int32_t n_costs = e->n_costs, n = n_costs + e->n_drivers;
    double *terms = values + 1, *positive = terms + n;
    double total = sum_of_products(terms, e->factors + (size_t)row * n_costs, n_costs);
    total = total < 1.0 ? 1.0 : total;
    const double inverse = 1.0 / total;
    for (int32_t i = 0; i < n_costs; i++) {
        double share = terms[i] * inverse;
        share = share > e->limits.most_share ? e->limits.most_share : share;
        terms[i] = clip((share - e->centre[i]) * e->inverse_scale[i], e->limits.most_deviations);
    }
    values[0] = e->limits.intercept;
    for (int32_t i = 0; i < n; i++)
        positive[i] = terms[i] > 0.0 ? terms[i] : 0.0;
    return total;
}

TW_CLONES double tw_cost_model_correction(const tw_cost_model *e, int32_t kernel, int32_t row, const double *values)
{
    const int32_t width = tw_cost_model_width(e);
    const double *weights = e->weights + ((size_t)row * e->n_kernels + kernel) * width;
    return clip(sum_of_products(values, weights, width), e->limits.most_correction);
}
