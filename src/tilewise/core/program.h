/* A straight-line program over the classes of a pool's kernels: what NumPy formulas left when they were traced.
 *
 * A value is a run of 8-byte slots, one for each class (one slot where all kernels share it). Booleans are int64 0 or 1.
 * Integers wrap as NumPy's do, except that a single-slot result that does not fit int64 stops the program: who runs it
 * then computes with the original formulas, which may hold larger numbers.
 */
#ifndef TILEWISE_PROGRAM_H
#define TILEWISE_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

typedef union {
    int64_t i;
    double f;
} tw_slot;

/* x -> y, n of them. The last bit of a logarithm differs between libraries: the caller says whose are used. */
typedef struct {
    void (*run)(void *context, const double *x, double *y, size_t n);
    void *context;
} tw_function;

typedef struct {
    tw_function log, log2;
} tw_math;

extern const tw_math TW_LIBM;

enum {
    TW_ADD_I, TW_SUB_I, TW_MUL_I, TW_FLOORDIV_I, TW_MOD_I, TW_GCD_I, TW_NEG_I, TW_MIN_I, TW_MAX_I,
    TW_AND_I, TW_OR_I, TW_XOR_I, TW_NOT_I, TW_NOT_B,
    TW_EQ_I, TW_NE_I, TW_LT_I, TW_LE_I,
    TW_ADD_F, TW_SUB_F, TW_MUL_F, TW_DIV_F, TW_NEG_F, TW_MIN_F, TW_MAX_F, TW_CEIL_F, TW_FLOOR_F, TW_LOG_F, TW_LOG2_F,
    TW_EQ_F, TW_NE_F, TW_LT_F, TW_LE_F,
    TW_FLOAT_I, /* int64 to double */
    TW_WHERE,   /* a ? b : c, of any type */
    TW_EXPAND,  /* out[i] = a[index[i]] */
    TW_OPS
};

/* Operands begin at slot `a`, `b`, `c`; where `steps` has bit 0, 1, 2 they advance with the result, else one slot
 * serves all. Slots: the inputs, then the constants, then what the program writes. */
typedef struct {
    int32_t op, out, n, a, b, c, steps;
} tw_step;

typedef struct {
    int32_t n_inputs, n_constants, n_slots, n_steps, n_index;
    tw_slot *constants;
    tw_step *steps;
    int32_t *index; /* of TW_EXPAND: `b` says where its indices begin */
    tw_math math;
} tw_program;

/* Copies what it is given. NULL where memory is short or a step reaches outside. */
tw_program *tw_program_new(int32_t n_inputs, const tw_slot *constants, int32_t n_constants, const tw_step *steps,
                           int32_t n_steps, const int32_t *index, int32_t n_index, int32_t n_slots, tw_math math);
void tw_program_free(tw_program *program);

/* Put inputs and constants into a fresh frame of n_slots; the constants stay between runs. */
void tw_program_begin(const tw_program *program, tw_slot *frame);

/* Run over a frame that holds inputs and constants. 0, or -1 where an integer does not fit. */
int tw_program_run(const tw_program *program, tw_slot *frame);

#endif
