/* Bytecode: a straight-line program that computes rules, features and cost terms of one problem for a pool of kernels.
 *
 * The tracer (_trace.py) and the compiler (_compiler.py) make it from NumPy formulas. A value is a run of 8-byte slots,
 * one per class of kernels, or a single slot when all kernels share the value. Booleans are int64, 0 or 1.
 * Integers wrap around like NumPy's, with one exception: a single-slot result that does not fit int64 stops the run.
 * The caller then uses the NumPy formulas, where such values may be Python integers of any size.
 */
#ifndef TILEWISE_BYTECODE_H
#define TILEWISE_BYTECODE_H

#include <stddef.h>
#include <stdint.h>

typedef union {
    int64_t i;
    double f;
} tw_slot;

/* An elementwise function y = f(x) over `n` values. Logarithms differ in the last bit between libraries, so the caller
 * chooses the library. */
typedef struct {
    void (*run)(void *context, const double *x, double *y, size_t n);
    void *context;
} tw_function;

typedef struct {
    tw_function log, log2;
} tw_math;

extern const tw_math TW_LIBM; /* the C library's logarithms */

/* Operation codes; _compiler.py lists the same names in the same order. */
enum {
    TW_ADD_I,
    TW_SUB_I,
    TW_MUL_I,
    TW_FLOORDIV_I,
    TW_MOD_I,
    TW_GCD_I,
    TW_NEG_I,
    TW_MIN_I,
    TW_MAX_I,
    TW_AND_I,
    TW_OR_I,
    TW_XOR_I,
    TW_NOT_I,
    TW_NOT_B,
    TW_EQ_I,
    TW_NE_I,
    TW_LT_I,
    TW_LE_I,
    TW_ADD_F,
    TW_SUB_F,
    TW_MUL_F,
    TW_DIV_F,
    TW_NEG_F,
    TW_MIN_F,
    TW_MAX_F,
    TW_CEIL_F,
    TW_FLOOR_F,
    TW_LOG_F,
    TW_LOG2_F,
    TW_EQ_F,
    TW_NE_F,
    TW_LT_F,
    TW_LE_F,
    TW_FLOAT_I, /* int64 to double */
    TW_WHERE,   /* a ? b : c, of any type */
    TW_EXPAND,  /* out[i] = a[index[b + i]], where `a` has `c` values */
    TW_OPS
};

/* One operation: `n` results from slot `out` on. Operands begin at slots `a`, `b` and `c`. Bit 0, 1 or 2 of `vectors`
 * says that the operand has `n` values; otherwise its single slot serves all results.
 * Slots are numbered: inputs first, then constants, then results. */
typedef struct {
    int32_t op, out, n, a, b, c, vectors;
} tw_instruction;

typedef struct {
    int32_t n_inputs, n_constants, n_slots, n_instructions, n_index;
    tw_slot *constants;           /* (n_constants) */
    tw_instruction *instructions; /* (n_instructions) */
    int32_t *index;               /* (n_index) class numbers, for TW_EXPAND */
    tw_math math;
} tw_bytecode;

/* Return new bytecode with copies of the arrays, which the caller frees with tw_bytecode_free. NULL when out of memory,
 * or when an instruction is unknown or addresses a slot outside the frame. */
tw_bytecode *tw_bytecode_new(int32_t n_inputs, const tw_slot *constants, int32_t n_constants,
                             const tw_instruction *instructions, int32_t n_instructions, const int32_t *index,
                             int32_t n_index, int32_t n_slots, tw_math math);

/* Free the bytecode and its arrays. NULL is allowed. */
void tw_bytecode_free(tw_bytecode *bytecode);

/* Copy the constants into a frame of n_slots. Runs do not change them, so once per frame is enough. */
void tw_bytecode_load_constants(const tw_bytecode *bytecode, tw_slot *frame);

/* Compute all results in a frame that holds the inputs and the constants. The frame stays the caller's.
 * Return 0, or -1 when a single-slot integer does not fit int64. */
int tw_bytecode_run(const tw_bytecode *bytecode, tw_slot *frame);

#endif
