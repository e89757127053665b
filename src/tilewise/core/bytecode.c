/* Bytecode: checks and interpreter. bytecode.h has the contract. */
#include "bytecode.h"
#include "clones.h"
#include "copy.h"

#include <math.h>

/* Write log(x) of `n` values with the C library. */
static void libm_log(void *context, const double *x, double *y, size_t n)
{
    (void)context;
    for (size_t i = 0; i < n; i++)
        y[i] = log(x[i]);
}

/* Write log2(x) of `n` values with the C library. */
static void libm_log2(void *context, const double *x, double *y, size_t n)
{
    (void)context;
    for (size_t i = 0; i < n; i++)
        y[i] = log2(x[i]);
}

const tw_math TW_LIBM = {{libm_log, NULL}, {libm_log2, NULL}};

/* Return 1 if an operation reads `n` values of its only operand, whatever `vectors` says. */
static int is_unary(int32_t op)
{
    static const uint8_t UNARY_OPS[TW_OPS] = {[TW_NEG_I] = 1, [TW_NOT_I] = 1,  [TW_NOT_B] = 1,
                                              [TW_NEG_F] = 1, [TW_CEIL_F] = 1, [TW_FLOOR_F] = 1,
                                              [TW_LOG_F] = 1, [TW_LOG2_F] = 1, [TW_FLOAT_I] = 1};
    return UNARY_OPS[op];
}

/* Return 1 if every instruction is known and reads and writes inside the frame. */
static int is_valid(const tw_bytecode *p)
{
    int32_t begin = p->n_inputs + p->n_constants;
    for (int32_t s = 0; s < p->n_instructions; s++) {
        const tw_instruction *x = &p->instructions[s];
        int32_t from[3] = {x->a, x->b, x->c};
        if (x->op < 0 || x->op >= TW_OPS || x->n < 1 || x->out < begin || x->out > p->n_slots - x->n)
            return 0;
        for (int i = 0; i < 3; i++) {
            if (i && x->op == TW_EXPAND)
                continue;
            int32_t n = x->vectors >> i & 1 || is_unary(x->op) ? x->n : 1;
            if (from[i] < 0 || from[i] > p->n_slots - n)
                return 0;
        }
        if (x->op == TW_EXPAND) {
            if (x->b < 0 || x->b > p->n_index - x->n)
                return 0;
            for (int32_t i = 0; i < x->n; i++) /* the operand has `c` values */
                if (p->index[x->b + i] < 0 || p->index[x->b + i] >= x->c || x->a > p->n_slots - x->c)
                    return 0;
        }
    }
    return 1;
}

tw_bytecode *tw_bytecode_new(int32_t n_inputs, const tw_slot *constants, int32_t n_constants,
                             const tw_instruction *instructions, int32_t n_instructions, const int32_t *index,
                             int32_t n_index, int32_t n_slots, tw_math math)
{
    tw_bytecode *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    *p = (tw_bytecode){n_inputs, n_constants, n_slots, n_instructions, n_index, NULL, NULL, NULL, math};
    p->constants = tw_copy(constants, n_constants, sizeof *constants);
    p->instructions = tw_copy(instructions, n_instructions, sizeof *instructions);
    p->index = tw_copy(index, n_index, sizeof *index);
    if (!p->constants || !p->instructions || !p->index || n_inputs < 0 || n_slots < n_inputs + n_constants ||
        !is_valid(p)) {
        tw_bytecode_free(p);
        return NULL;
    }
    return p;
}

void tw_bytecode_free(tw_bytecode *p)
{
    if (p) {
        free(p->constants);
        free(p->instructions);
        free(p->index);
        free(p);
    }
}

void tw_bytecode_load_constants(const tw_bytecode *p, tw_slot *frame)
{
    memcpy(frame + p->n_inputs, p->constants, p->n_constants * sizeof *frame);
}

/* ---- NumPy's integer arithmetic ---------------------------------------------------------------------------------- */

/* Return a / b rounded down, 0 when b is 0, as NumPy does. */
static inline int64_t floordiv(int64_t a, int64_t b)
{
    if (b == 0)
        return 0;
    if (b == -1)
        return (int64_t)(0 - (uint64_t)a);
    int64_t q = a / b;
    return q - ((a % b != 0) & ((a < 0) != (b < 0)));
}

/* Return the remainder of floordiv, 0 when b is 0, as NumPy does. */
static inline int64_t mod(int64_t a, int64_t b)
{
    if (b == 0 || b == -1)
        return 0;
    int64_t r = a % b;
    return r + ((r != 0) & ((r < 0) != (b < 0)) ? b : 0);
}

/* Return the greatest common divisor, not negative unless it is 2^63, as NumPy does. */
static inline int64_t gcd(int64_t a, int64_t b)
{
    uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
    while (y) {
        uint64_t r = x % y;
        x = y, y = r;
    }
    return (int64_t)x;
}

/* One instruction over n values: a loop for each combination of vector and scalar operands, so that the compiler
 * vectorises each. */
#define EACH(N) _Pragma("GCC ivdep") for (int64_t i = 0; i < (N); i++)
#define BINARY(T, R, EXPRESSION)                                                                                       \
    {                                                                                                                  \
        const int64_t n = s->n;                                                                                        \
        const tw_slot *a = frame + s->a, *b = frame + s->b;                                                            \
        tw_slot *out = frame + s->out;                                                                                 \
        if ((s->vectors & 3) == 3)                                                                                     \
            EACH (n) {                                                                                                 \
                const __typeof__(a->T) x = a[i].T, y = b[i].T;                                                         \
                out[i].R = EXPRESSION;                                                                                 \
            }                                                                                                          \
        else if (s->vectors & 1) {                                                                                     \
            const __typeof__(a->T) y = b->T;                                                                           \
            EACH (n) {                                                                                                 \
                const __typeof__(a->T) x = a[i].T;                                                                     \
                out[i].R = EXPRESSION;                                                                                 \
            }                                                                                                          \
        } else if (s->vectors & 2) {                                                                                   \
            const __typeof__(a->T) x = a->T;                                                                           \
            EACH (n) {                                                                                                 \
                const __typeof__(a->T) y = b[i].T;                                                                     \
                out[i].R = EXPRESSION;                                                                                 \
            }                                                                                                          \
        } else {                                                                                                       \
            const __typeof__(a->T) x = a->T, y = b->T;                                                                 \
            out->R = EXPRESSION;                                                                                       \
        }                                                                                                              \
        (void)b;                                                                                                       \
        break;                                                                                                         \
    }
#define UNARY(T, R, EXPRESSION)                                                                                        \
    {                                                                                                                  \
        const tw_slot *a = frame + s->a;                                                                               \
        tw_slot *out = frame + s->out;                                                                                 \
        EACH (s->n) {                                                                                                  \
            const __typeof__(a->T) x = a[i].T;                                                                         \
            out[i].R = EXPRESSION;                                                                                     \
        }                                                                                                              \
        break;                                                                                                         \
    }
/* A single-slot result depends on the problem's sizes alone. It is checked for overflow. */
#define CHECKED(CHECK, EXPRESSION)                                                                                     \
    if (s->n == 1) {                                                                                                   \
        int64_t result;                                                                                                \
        if (CHECK(frame[s->a].i, frame[s->b].i, &result))                                                              \
            return -1;                                                                                                 \
        frame[s->out].i = result;                                                                                      \
        break;                                                                                                         \
    }                                                                                                                  \
    BINARY(i, i, (int64_t)(EXPRESSION))

TW_CLONES int tw_bytecode_run(const tw_bytecode *p, tw_slot *frame)
{
    const tw_instruction *end = p->instructions + p->n_instructions;
    for (const tw_instruction *s = p->instructions; s < end; s++)
        switch (s->op) {
        case TW_ADD_I: CHECKED(__builtin_add_overflow, (uint64_t)x + (uint64_t)y)
        case TW_SUB_I: CHECKED(__builtin_sub_overflow, (uint64_t)x - (uint64_t)y)
        case TW_MUL_I: CHECKED(__builtin_mul_overflow, (uint64_t)x * (uint64_t)y)
        case TW_FLOORDIV_I: BINARY(i, i, floordiv(x, y))
        case TW_MOD_I: BINARY(i, i, mod(x, y))
        case TW_GCD_I: BINARY(i, i, gcd(x, y))
        case TW_NEG_I: UNARY(i, i, (int64_t)(0 - (uint64_t)x))
        case TW_MIN_I: BINARY(i, i, x < y ? x : y)
        case TW_MAX_I: BINARY(i, i, x > y ? x : y)
        case TW_AND_I: BINARY(i, i, x & y)
        case TW_OR_I: BINARY(i, i, x | y)
        case TW_XOR_I: BINARY(i, i, x ^ y)
        case TW_NOT_I: UNARY(i, i, ~x)
        case TW_NOT_B: UNARY(i, i, x ^ 1)
        case TW_EQ_I: BINARY(i, i, x == y)
        case TW_NE_I: BINARY(i, i, x != y)
        case TW_LT_I: BINARY(i, i, x < y)
        case TW_LE_I: BINARY(i, i, x <= y)
        case TW_ADD_F: BINARY(f, f, x + y)
        case TW_SUB_F: BINARY(f, f, x - y)
        case TW_MUL_F: BINARY(f, f, x * y)
        case TW_DIV_F: BINARY(f, f, x / y)
        case TW_NEG_F: UNARY(f, f, -x)
        /* like NumPy: a NaN operand is the result, the first of two */
        case TW_MIN_F: BINARY(f, f, x != x ? x : y < x ? y : y != y ? y : x)
        case TW_MAX_F: BINARY(f, f, x != x ? x : y > x ? y : y != y ? y : x)
        case TW_CEIL_F: UNARY(f, f, ceil(x))
        case TW_FLOOR_F: UNARY(f, f, floor(x))
        case TW_LOG_F: p->math.log.run(p->math.log.context, &frame[s->a].f, &frame[s->out].f, s->n); break;
        case TW_LOG2_F: p->math.log2.run(p->math.log2.context, &frame[s->a].f, &frame[s->out].f, s->n); break;
        case TW_EQ_F: BINARY(f, i, x == y)
        case TW_NE_F: BINARY(f, i, x != y)
        case TW_LT_F: BINARY(f, i, x < y)
        case TW_LE_F: BINARY(f, i, x <= y)
        case TW_FLOAT_I: UNARY(i, f, (double)x)
        case TW_WHERE:
            EACH (s->n)
                frame[s->out + i] = frame[s->a + (s->vectors & 1 ? i : 0)].i ? frame[s->b + (s->vectors & 2 ? i : 0)]
                                                                             : frame[s->c + (s->vectors & 4 ? i : 0)];
            break;
        case TW_EXPAND: {
            const int32_t *index = p->index + s->b;
            const tw_slot *a = frame + s->a;
            tw_slot *out = frame + s->out;
            EACH (s->n)
                out[i].i = a[index[i]].i;
            break;
        }
        default: return -1; /* tw_bytecode_new refuses other operations */
        }
    return 0;
}
