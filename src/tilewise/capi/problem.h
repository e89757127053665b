/* Problems: their checks, and their columns in the order of tilewise.ops. */
#ifndef TILEWISE_PROBLEM_H
#define TILEWISE_PROBLEM_H

#include "include/tilewise.h"

/* A convolution has TW_SIZES sizes, then its layout. Model files of earlier versions lack the layout. */
enum { TW_SIZES = 19, TW_MAX_INPUTS = TW_SIZES + 1, TW_LAYOUTS = 4, TW_CONV_LAYOUTS = 2 };

extern const char *const TW_LAYOUT_NAMES[TW_LAYOUTS];           /* of a matrix product */
extern const char *const TW_CONV_LAYOUT_NAMES[TW_CONV_LAYOUTS]; /* the default comes first */

/* The directions of a convolution, in the order of CK Tile's codes. */
enum { TW_FORWARD, TW_BWD_DATA, TW_BWD_WEIGHT, TW_DIRECTIONS };

/* Return the direction of a convolution's variant, 0 for a GEMM's variant, or -1 if the op has no such variant. */
int tw_direction(uint32_t op, const char *variant);

/* Check a problem by the rules of tilewise.ops. Return TILEWISE_OK, TILEWISE_BAD_ARGUMENT or TILEWISE_BAD_PROBLEM. */
int tw_problem_check(const tilewise_problem *problem);

/* Return the index of a convolution's layout in TW_CONV_LAYOUT_NAMES, 0 for an empty text, or -1. */
int tw_conv_layout(const tilewise_conv *conv);

/* Write the columns of a checked problem into `inputs` (TW_MAX_INPUTS); `layouts` has the code of each layout. */
void tw_problem_columns(const tilewise_problem *problem, const int64_t layouts[TW_LAYOUTS], int64_t *inputs);

/* Write the output's depth, height and width of a checked convolution into `sizes`. */
void tw_output_sizes(const tilewise_conv *conv, int64_t sizes[3]);

/* Write the floating-point operations of a checked problem, and the fewest bytes to move in this type, as doubles.
 * Return 0, or -1 if the type is unknown. */
int tw_problem_work(const tilewise_problem *problem, const char *dtype, double *flops, double *bytes);

#endif
