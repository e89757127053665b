/* Unit tests of the bytecode's checks and interpreter. An argument names one test; without it all tests run. */
#include "../../src/tilewise/core/bytecode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

/* Record a failed expectation. */
#define EXPECT(CONDITION)                                                                                              \
    do {                                                                                                               \
        if (!(CONDITION)) {                                                                                            \
            printf("line %d: %s\n", __LINE__, #CONDITION);                                                             \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

#define I(X) {.i = (X)}
#define F(X) {.f = (X)}

enum { MAX_N = 9 }; /* values of a vector: more than fit in one vector register, and not a multiple of it */

static uint8_t tested[TW_OPS];

/* Return 1 if two slots hold the same bits, or two NaN. */
static int same(tw_slot x, tw_slot y, int is_float)
{
    return x.i == y.i || (is_float && isnan(x.f) && isnan(y.f));
}

/* Return 1 if an operation has one operand, which is a vector whatever `vectors` says. */
static int is_unary(int32_t op)
{
    return op == TW_NEG_I || op == TW_NOT_I || op == TW_NOT_B || op == TW_NEG_F || op == TW_CEIL_F ||
           op == TW_FLOOR_F || op == TW_LOG_F || op == TW_LOG2_F || op == TW_FLOAT_I;
}

/* Run one instruction of `n` results over three operands that are filled with one value each; bit i of `vectors` makes
 * operand i a vector. Write the results to `out`; return the status, or -2 when the bytecode is refused. */
static int run(int32_t op, int32_t n, int32_t vectors, const tw_slot operands[3], tw_slot out[MAX_N])
{
    const tw_instruction instruction = {op, 3 * MAX_N, n, 0, MAX_N, 2 * MAX_N, vectors};
    tw_slot *frame = calloc((size_t)4 * MAX_N, sizeof *frame);
    tw_bytecode *code = tw_bytecode_new(3 * MAX_N, NULL, 0, &instruction, 1, NULL, 0, 4 * MAX_N, TW_LIBM);
    if (!frame)
        abort();
    for (int i = 0; i < 3 * MAX_N; i++) { /* behind a scalar lies another number */
        const int read = i % MAX_N == 0 || vectors >> (i / MAX_N) & 1 || is_unary(op);
        frame[i].i = read ? operands[i / MAX_N].i : 987654321;
    }
    const int status = code ? tw_bytecode_run(code, frame) : -2;
    memcpy(out, frame + (ptrdiff_t)3 * MAX_N, MAX_N * sizeof *out);
    tw_bytecode_free(code);
    free(frame);
    return status;
}

/* Check one operation for all lengths and combinations of vector and scalar operands. `checked`: the result of a single
 * slot overflows, so that the run fails. */
static void expect(int line, int32_t op, const tw_slot operands[3], tw_slot expected, int is_float, int checked)
{
    tw_slot out[MAX_N];
    tested[op] = 1;
    for (int32_t n = 1; n <= MAX_N; n++)
        for (int32_t vectors = 0; vectors < 8; vectors++) {
            const int status = run(op, n, vectors, operands, out);
            /* without a vector operand, a binary operation of several slots writes the first alone */
            int ok = status == (checked && n == 1 ? -1 : 0);
            const int32_t written = is_unary(op) || op == TW_WHERE || vectors & 3 ? n : 1;
            for (int32_t i = 0; ok && status == 0 && i < written; i++)
                ok = same(out[i], expected, is_float);
            if (!ok) {
                printf("line %d: op %d, n %d, vectors %d: status %d, result %lld (%.17g)\n", line, op, n, vectors,
                       status, (long long)out[0].i, out[0].f);
                failures++;
                return;
            }
        }
}

#define INTEGERS(OP, X, Y, RESULT) expect(__LINE__, OP, (tw_slot[3]){I(X), I(Y), I(0)}, (tw_slot)I(RESULT), 0, 0)
#define OVERFLOWS(OP, X, Y, WRAPPED) expect(__LINE__, OP, (tw_slot[3]){I(X), I(Y), I(0)}, (tw_slot)I(WRAPPED), 0, 1)
#define DOUBLES(OP, X, Y, RESULT) expect(__LINE__, OP, (tw_slot[3]){F(X), F(Y), I(0)}, (tw_slot)F(RESULT), 1, 0)
#define COMPARES(OP, X, Y, RESULT) expect(__LINE__, OP, (tw_slot[3]){F(X), F(Y), I(0)}, (tw_slot)I(RESULT), 0, 0)

static void test_integer_arithmetic(void)
{
    INTEGERS(TW_ADD_I, 3, -5, -2);
    OVERFLOWS(TW_ADD_I, INT64_MAX, 1, INT64_MIN);
    INTEGERS(TW_SUB_I, 3, -5, 8);
    OVERFLOWS(TW_SUB_I, INT64_MIN, 1, INT64_MAX);
    INTEGERS(TW_MUL_I, -7, 6, -42);
    OVERFLOWS(TW_MUL_I, INT64_C(1) << 40, INT64_C(1) << 40, 0);
    OVERFLOWS(TW_MUL_I, INT64_MIN, -1, INT64_MIN);
    INTEGERS(TW_NEG_I, 5, 0, -5);
    INTEGERS(TW_NEG_I, INT64_MIN, 0, INT64_MIN);
    INTEGERS(TW_MIN_I, -1, 1, -1);
    INTEGERS(TW_MIN_I, 1, -1, -1);
    INTEGERS(TW_MAX_I, -1, 1, 1);
    INTEGERS(TW_MAX_I, INT64_MIN, INT64_MAX, INT64_MAX);
}

static void test_division(void)
{
    INTEGERS(TW_FLOORDIV_I, 7, 2, 3);
    INTEGERS(TW_FLOORDIV_I, -7, 2, -4);
    INTEGERS(TW_FLOORDIV_I, 7, -2, -4);
    INTEGERS(TW_FLOORDIV_I, -7, -2, 3);
    INTEGERS(TW_FLOORDIV_I, -8, 2, -4);
    INTEGERS(TW_FLOORDIV_I, 7, 0, 0);
    INTEGERS(TW_FLOORDIV_I, INT64_MIN, -1, INT64_MIN);
    INTEGERS(TW_MOD_I, 7, 3, 1);
    INTEGERS(TW_MOD_I, -7, 3, 2);
    INTEGERS(TW_MOD_I, 7, -3, -2);
    INTEGERS(TW_MOD_I, -7, -3, -1);
    INTEGERS(TW_MOD_I, 6, -3, 0);
    INTEGERS(TW_MOD_I, 7, 0, 0);
    INTEGERS(TW_MOD_I, INT64_MIN, -1, 0);
    INTEGERS(TW_GCD_I, 12, -18, 6);
    INTEGERS(TW_GCD_I, 0, 0, 0);
    INTEGERS(TW_GCD_I, 0, -5, 5);
    INTEGERS(TW_GCD_I, INT64_MIN, 6, 2);
    INTEGERS(TW_GCD_I, INT64_MIN, INT64_MIN, INT64_MIN);
    DOUBLES(TW_DIV_F, 1.0, 4.0, 0.25);
    DOUBLES(TW_DIV_F, 1.0, 0.0, INFINITY);
    DOUBLES(TW_DIV_F, 1.0, -0.0, -INFINITY);
    DOUBLES(TW_DIV_F, 0.0, 0.0, NAN);
    DOUBLES(TW_DIV_F, 1e308, 1e-308, INFINITY);
}

static void test_bits_and_comparisons(void)
{
    INTEGERS(TW_AND_I, 12, 10, 8);
    INTEGERS(TW_OR_I, 12, 10, 14);
    INTEGERS(TW_XOR_I, 12, 10, 6);
    INTEGERS(TW_NOT_I, 0, 0, -1);
    INTEGERS(TW_NOT_B, 0, 0, 1);
    INTEGERS(TW_NOT_B, 1, 0, 0);
    INTEGERS(TW_EQ_I, 5, 5, 1);
    INTEGERS(TW_EQ_I, 5, 6, 0);
    INTEGERS(TW_NE_I, 5, 6, 1);
    INTEGERS(TW_LT_I, INT64_MIN, INT64_MAX, 1);
    INTEGERS(TW_LT_I, 5, 5, 0);
    INTEGERS(TW_LE_I, 5, 5, 1);
    INTEGERS(TW_LE_I, 6, 5, 0);
    COMPARES(TW_EQ_F, 0.0, -0.0, 1);
    COMPARES(TW_EQ_F, NAN, NAN, 0);
    COMPARES(TW_NE_F, NAN, NAN, 1);
    COMPARES(TW_NE_F, 1.0, 1.0, 0);
    COMPARES(TW_LT_F, -INFINITY, INFINITY, 1);
    COMPARES(TW_LT_F, NAN, 1.0, 0);
    COMPARES(TW_LE_F, 1.0, 1.0, 1);
    COMPARES(TW_LE_F, 1.0, NAN, 0);
}

static void test_floating_point(void)
{
    DOUBLES(TW_ADD_F, 1.5, 2.25, 3.75);
    DOUBLES(TW_ADD_F, INFINITY, -INFINITY, NAN);
    DOUBLES(TW_SUB_F, 1.5, 2.25, -0.75);
    DOUBLES(TW_SUB_F, 0.0, 0.0, 0.0);
    DOUBLES(TW_MUL_F, 1e200, 1e200, INFINITY);
    DOUBLES(TW_MUL_F, 0.0, INFINITY, NAN);
    DOUBLES(TW_NEG_F, 0.0, 0.0, -0.0);
    DOUBLES(TW_MIN_F, 1.0, 2.0, 1.0);
    DOUBLES(TW_MIN_F, NAN, 2.0, NAN);
    DOUBLES(TW_MIN_F, 2.0, NAN, NAN);
    DOUBLES(TW_MIN_F, 0.0, -0.0, 0.0);                /* equal: the first */
    for (int32_t op = TW_MIN_F; op <= TW_MAX_F; op++) /* of two NaN the first */
        INTEGERS(op, INT64_C(0x7ff8000000000001), INT64_C(0x7ff8000000000002), INT64_C(0x7ff8000000000001));
    DOUBLES(TW_MAX_F, 1.0, 2.0, 2.0);
    DOUBLES(TW_MAX_F, NAN, 2.0, NAN);
    DOUBLES(TW_MAX_F, 2.0, NAN, NAN);
    DOUBLES(TW_MAX_F, -0.0, 0.0, -0.0);
    DOUBLES(TW_CEIL_F, 1.25, 0.0, 2.0);
    DOUBLES(TW_CEIL_F, -0.5, 0.0, -0.0);
    DOUBLES(TW_CEIL_F, NAN, 0.0, NAN);
    DOUBLES(TW_FLOOR_F, -1.25, 0.0, -2.0);
    DOUBLES(TW_FLOOR_F, INFINITY, 0.0, INFINITY);
    DOUBLES(TW_LOG_F, 1.0, 0.0, 0.0);
    DOUBLES(TW_LOG_F, 0.0, 0.0, -INFINITY);
    DOUBLES(TW_LOG_F, -1.0, 0.0, NAN);
    DOUBLES(TW_LOG2_F, 1024.0, 0.0, 10.0);
    DOUBLES(TW_LOG2_F, 0.0, 0.0, -INFINITY);
    expect(__LINE__, TW_FLOAT_I, (tw_slot[3]){I(-3), I(0), I(0)}, (tw_slot)F(-3.0), 1, 0);
    expect(__LINE__, TW_FLOAT_I, (tw_slot[3]){I(INT64_MAX), I(0), I(0)}, (tw_slot)F(9223372036854775808.0), 1, 0);
}

static void test_where_and_expand(void)
{
    expect(__LINE__, TW_WHERE, (tw_slot[3]){I(1), I(7), I(8)}, (tw_slot)I(7), 0, 0);
    expect(__LINE__, TW_WHERE, (tw_slot[3]){I(0), I(7), I(8)}, (tw_slot)I(8), 0, 0);
    expect(__LINE__, TW_WHERE, (tw_slot[3]){I(0), F(1.0), F(NAN)}, (tw_slot)F(NAN), 1, 0);
    static const int32_t INDEX[] = {9, 2, 0, 1, 2, 0};
    static const tw_slot CONSTANTS[] = {I(10), I(20), I(30)};
    const tw_instruction expand = {TW_EXPAND, 3, 5, 0, 1, 3, 0};
    tw_slot frame[8];
    tw_bytecode *code = tw_bytecode_new(0, CONSTANTS, 3, &expand, 1, INDEX, 6, 8, TW_LIBM);
    EXPECT(code);
    if (!code)
        return;
    tested[TW_EXPAND] = 1;
    tw_bytecode_load_constants(code, frame);
    for (int again = 0; again < 2; again++) { /* constants stay between runs */
        EXPECT(!tw_bytecode_run(code, frame));
        EXPECT(frame[3].i == 30 && frame[4].i == 10 && frame[5].i == 20 && frame[6].i == 30 && frame[7].i == 10);
    }
    tw_bytecode_free(code);
}

/* Vectors whose elements differ: (x_i + k) * x_i, where k is an input, over a partition of three classes. */
static void test_sequence(void)
{
    static const tw_slot CONSTANTS[] = {I(2), I(-3), I(INT64_MAX)};
    const tw_instruction steps[] = {{TW_ADD_I, 4, 3, 1, 0, 0, 1}, {TW_MUL_I, 7, 3, 4, 1, 0, 3}};
    tw_slot frame[10];
    tw_bytecode *code = tw_bytecode_new(1, CONSTANTS, 3, steps, 2, NULL, 0, 10, TW_LIBM);
    EXPECT(code);
    if (!code)
        return;
    tw_bytecode_load_constants(code, frame);
    frame[0].i = 5;
    EXPECT(!tw_bytecode_run(code, frame));
    EXPECT(frame[7].i == 14 && frame[8].i == -6);
    EXPECT(frame[9].i == (int64_t)(((uint64_t)INT64_MAX + 5) * (uint64_t)INT64_MAX)); /* vectors wrap */
    tw_bytecode_free(code);
}

static void doubled(void *context, const double *x, double *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = 2.0 * x[i];
    *(size_t *)context += n;
}

static void test_logarithms_are_the_callers(void)
{
    size_t calls = 0;
    const tw_math math = {{doubled, &calls}, {doubled, &calls}};
    const tw_instruction steps[] = {{TW_LOG_F, 2, 2, 0, 0, 0, 1}, {TW_LOG2_F, 4, 2, 2, 2, 2, 1}};
    tw_slot frame[6] = {F(1.5), F(-1.0)};
    tw_bytecode *code = tw_bytecode_new(2, NULL, 0, steps, 2, NULL, 0, 6, math);
    EXPECT(code && !tw_bytecode_run(code, frame));
    EXPECT(calls == 4 && frame[4].f == 6.0 && frame[5].f == -4.0);
    tw_bytecode_free(code);
}

/* Return 1 if bytecode of one input, three constants and this instruction in a frame of eight slots is refused. */
static int refused(tw_instruction instruction)
{
    static const tw_slot CONSTANTS[] = {I(1), I(2), I(3)};
    static const int32_t INDEX[] = {0, 1, 2, -1};
    tw_bytecode *code = tw_bytecode_new(1, CONSTANTS, 3, &instruction, 1, INDEX, 4, 8, TW_LIBM);
    tw_bytecode_free(code);
    return !code;
}

static void test_checks(void)
{
    EXPECT(!refused((tw_instruction){TW_ADD_I, 4, 4, 0, 4, 0, 2}));
    EXPECT(refused((tw_instruction){-1, 4, 1, 0, 0, 0, 0}));
    EXPECT(refused((tw_instruction){TW_OPS, 4, 1, 0, 0, 0, 0}));
    EXPECT(refused((tw_instruction){TW_ADD_I, 3, 1, 0, 0, 0, 0})); /* writes a constant */
    EXPECT(refused((tw_instruction){TW_ADD_I, 0, 1, 0, 0, 0, 0})); /* writes an input */
    EXPECT(refused((tw_instruction){TW_ADD_I, 5, 4, 0, 0, 0, 0})); /* writes beyond the frame */
    EXPECT(refused((tw_instruction){TW_ADD_I, 4, 0, 0, 0, 0, 0}));
    EXPECT(refused((tw_instruction){TW_ADD_I, 4, -1, 0, 0, 0, 0}));
    EXPECT(refused((tw_instruction){TW_ADD_I, 4, INT32_MAX, 0, 0, 0, 0}));
    EXPECT(refused((tw_instruction){TW_ADD_I, INT32_MAX, 1, 0, 0, 0, 0}));
    EXPECT(refused((tw_instruction){TW_ADD_I, 4, 1, -1, 0, 0, 0}));
    EXPECT(refused((tw_instruction){TW_ADD_I, 4, 1, 0, 8, 0, 0}));
    EXPECT(refused((tw_instruction){TW_ADD_I, 4, 4, 5, 0, 0, 1}));  /* a vector operand reaches beyond the frame */
    EXPECT(!refused((tw_instruction){TW_ADD_I, 4, 4, 5, 0, 0, 0})); /* a single slot does not */
    EXPECT(refused((tw_instruction){TW_NEG_I, 4, 4, 5, 5, 5, 0}));  /* the operand of a unary operation is a vector */
    EXPECT(refused((tw_instruction){TW_WHERE, 4, 4, 0, 0, 5, 4}));
    EXPECT(!refused((tw_instruction){TW_EXPAND, 4, 3, 1, 0, 3, 0}));
    EXPECT(refused((tw_instruction){TW_EXPAND, 4, 3, 1, 0, 2, 0})); /* index 2 of two values */
    EXPECT(refused((tw_instruction){TW_EXPAND, 4, 3, 6, 0, 3, 0})); /* the operand reaches beyond the frame */
    EXPECT(refused((tw_instruction){TW_EXPAND, 4, 4, 1, 0, 3, 0})); /* a negative index */
    EXPECT(refused((tw_instruction){TW_EXPAND, 4, 3, 1, 2, 3, 0})); /* beyond the list of indices */
    EXPECT(refused((tw_instruction){TW_EXPAND, 4, 3, 1, -1, 3, 0}));
    EXPECT(!tw_bytecode_new(-1, NULL, 0, NULL, 0, NULL, 0, 0, TW_LIBM));
    EXPECT(!tw_bytecode_new(2, NULL, 0, NULL, 0, NULL, 0, 1, TW_LIBM)); /* a frame smaller than its inputs */
    tw_bytecode *empty = tw_bytecode_new(0, NULL, 0, NULL, 0, NULL, 0, 0, TW_LIBM);
    EXPECT(empty && !tw_bytecode_run(empty, NULL));
    tw_bytecode_free(empty);
    tw_bytecode_free(NULL);
}

/* Run the tests that cover operations, and expect that each operation was run. */
static void test_every_operation(void)
{
    test_integer_arithmetic();
    test_division();
    test_bits_and_comparisons();
    test_floating_point();
    test_where_and_expand();
    for (int op = 0; op < TW_OPS; op++)
        if (!tested[op]) {
            printf("operation %d was not run\n", op);
            failures++;
        }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } TESTS[] = {
        {"integer arithmetic", test_integer_arithmetic},
        {"division", test_division},
        {"bits and comparisons", test_bits_and_comparisons},
        {"floating point", test_floating_point},
        {"where and expand", test_where_and_expand},
        {"sequence", test_sequence},
        {"the caller's logarithms", test_logarithms_are_the_callers},
        {"checks", test_checks},
        {"every operation", test_every_operation},
    };
    for (size_t i = 0; i < sizeof TESTS / sizeof *TESTS; i++)
        if (argc < 2 || !strcmp(argv[1], TESTS[i].name))
            TESTS[i].run();
    return failures != 0;
}
