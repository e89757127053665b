/* The calibrated estimate of a launch's clocks; see features/estimate.py, whose sums this repeats bit for bit. */
#ifndef TILEWISE_ESTIMATE_H
#define TILEWISE_ESTIMATE_H

#include <stdint.h>

enum { TW_MOST_TERMS = 63 }; /* costs and drivers; NumPy sums up to 128 numbers in one go */

typedef struct {
    double intercept, most_deviations, most_correction, most_share;
} tw_limits;

typedef struct {
    int32_t n_programs, n_costs, n_drivers, n_kernels;
    tw_limits limits;
    int64_t *programs; /* (n_programs), ascending */
    double *factors;   /* (n_programs + 1, n_costs) */
    double *centre, *inverse_scale; /* (n_costs) */
    double *weights;   /* (n_programs + 1, n_kernels, 1 + 2 (n_costs + n_drivers)): a problem has few programs */
} tw_estimate;

/* Copies what it is given, `weights` with the kernels first; NULL where memory is short or there are too many terms. */
tw_estimate *tw_estimate_new(int32_t n_programs, int32_t n_costs, int32_t n_drivers, int32_t n_kernels,
                             tw_limits limits, const int64_t *programs, const double *factors, const double *centre,
                             const double *scale, const double *weights);
void tw_estimate_free(tw_estimate *estimate);

/* Which row of the factors serves a compiled program. */
int32_t tw_estimate_place(const tw_estimate *estimate, int64_t program);

/* How many numbers stand for a kernel: one, its costs, its drivers, and those of both again as far as they are positive. */
static inline int32_t tw_estimate_width(const tw_estimate *e)
{
    return 1 + 2 * (e->n_costs + e->n_drivers);
}

/* Clocks of a kernel by its costs alone. `values` (width): from the second on costs, then drivers in standard deviations,
 * within the limits; all of them become what the correction weighs. */
double tw_estimate_clocks(const tw_estimate *estimate, int32_t place, double *values);

/* What corrects the clocks' logarithm. Not right after tw_estimate_clocks: `values` should have left the store buffer. */
double tw_estimate_correction(const tw_estimate *estimate, int32_t kernel, int32_t place, const double *values);

#endif
