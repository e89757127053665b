/* The calibrated cost model of a launch's clocks. It repeats the sums of features/_cost_model.py bit for bit. */
#ifndef TILEWISE_COST_MODEL_H
#define TILEWISE_COST_MODEL_H

#include <stdint.h>

enum { TW_MAX_TERMS = 63 }; /* costs and drivers: NumPy sums up to 128 numbers in the order repeated here */

typedef struct {
    double intercept, most_deviations, most_correction, most_share;
} tw_limits;

typedef struct {
    int32_t n_binaries, n_costs, n_drivers, n_kernels;
    tw_limits limits;
    int64_t *binaries;              /* (n_binaries) numbers of the calibrated binaries, ascending */
    double *factors;                /* (n_binaries + 1, n_costs); the last row serves other binaries */
    double *centre, *inverse_scale; /* (n_costs) */
    double *weights; /* (n_binaries + 1, n_kernels, 1 + 2 (n_costs + n_drivers)): few binaries per problem */
} tw_cost_model;

/* Return a new cost model with copies of the arrays, which the caller frees with tw_cost_model_free. `weights` comes
 * with the kernels first. NULL when out of memory, or when a count is out of range. */
tw_cost_model *tw_cost_model_new(int32_t n_binaries, int32_t n_costs, int32_t n_drivers, int32_t n_kernels,
                                 tw_limits limits, const int64_t *binaries, const double *factors, const double *centre,
                                 const double *scale, const double *weights);

/* Free a cost model and its arrays. NULL is allowed. */
void tw_cost_model_free(tw_cost_model *cost_model);

/* Return the row of `factors` that serves a binary. */
int32_t tw_cost_model_row(const tw_cost_model *cost_model, int64_t binary);

/* Return how many numbers describe a kernel: a constant, its costs and drivers, and the positive parts of both. */
static inline int32_t tw_cost_model_width(const tw_cost_model *e)
{
    return 1 + 2 * (e->n_costs + e->n_drivers);
}

/* Return the clocks of a kernel by its costs alone, at least 1.
 *
 * `values` (width) holds the costs from index 1 on, then the drivers in standard deviations. The function replaces all
 * of them by the numbers that tw_cost_model_correction weighs. */
double tw_cost_model_clocks(const tw_cost_model *cost_model, int32_t row, double *values);

/* Return the correction of the clocks' logarithm. Process other kernels between tw_cost_model_clocks and this call:
 * reading `values` while they are still in the store buffer is slow. */
double tw_cost_model_correction(const tw_cost_model *cost_model, int32_t kernel, int32_t row, const double *values);

#endif
