#include "program.h"
#include "clones.h"
#include "copy.h"

#include <math.h>

static void libm_log(void *context, const double *x, double *y, size_t n)
{
    (void)context;
    for (size_t i = 0; i < n; i++)
        y[i] = log(x[i]);
}

static void libm_log2(void *context, const double *x, double *y, size_t n)
{
    (void)context;
    for (size_t i = 0; i < n; i++)
        y[i] = log2(x[i]);
}

const tw_math TW_LIBM = {{libm_log, NULL}, {libm_log2, NULL}};

/* Whether a step reads `n` values of its only operand, whatever `steps` says. */
static int is_unary(int32_t op)
{
    static const uint8_t UNARY_OPS[TW_OPS] = {[TW_NEG_I] = 1, [TW_NOT_I] = 1,   [TW_NOT_B] = 1, [TW_NEG_F] = 1,  [TW_CEIL_F] = 1,
                                              [TW_FLOOR_F] = 1, [TW_LOG_F] = 1, [TW_LOG2_F] = 1, [TW_FLOAT_I] = 1};
    return UNARY_OPS[op];
}

static int sound(const tw_program *p)
{
    int32_t begin = p->n_inputs + p->n_constants;
    for (int32_t s = 0; s < p->n_steps; s++) {
        const tw_step *x = &p->steps[s];
        int32_t from[3] = {x->a, x->b, x->c};
        if (x->op < 0 || x->op >= TW_OPS || x->n < 1 || x->out < begin || x->out > p->n_slots - x->n)
            return 0;
        for (int i = 0; i < 3; i++) {
            if (i && x->op == TW_EXPAND)
                continue;
            int32_t n = x->steps >> i & 1 || is_unary(x->op) ? x->n : 1;
            if (from[i] < 0 || from[i] > p->n_slots - n)
                return 0;
        }
        if (x->op == TW_EXPAND) {
            if (x->b < 0 || x->b > p->n_index - x->n)
                return 0;
            for (int32_t i = 0; i < x->n; i++) /* `c` is how many classes the operand has */
                if (p->index[x->b + i] < 0 || p->index[x->b + i] >= x->c || x->a > p->n_slots - x->c)
                    return 0;
        }
    }
    return 1;
}

tw_program *tw_program_new(int32_t n_inputs, const tw_slot *constants, int32_t n_constants, const tw_step *steps,
                           int32_t n_steps, const int32_t *index, int32_t n_index, int32_t n_slots, tw_math math)
{
    tw_program *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    *p = (tw_program){n_inputs, n_constants, n_slots, n_steps, n_index, NULL, NULL, NULL, math};
    p->constants = tw_copy(constants, n_constants, sizeof *constants);
    p->steps = tw_copy(steps, n_steps, sizeof *steps);
    p->index = tw_copy(index, n_index, sizeof *index);
    if (!p->constants || !p->steps || !p->index || n_inputs < 0 || n_slots < n_inputs + n_constants || !sound(p)) {
        tw_program_free(p);
        return NULL;
    }
    return p;
}

void tw_program_free(tw_program *p)
{
    if (p) {
        free(p->constants);
        free(p->steps);
        free(p->index);
        free(p);
    }
}

void tw_program_begin(const tw_program *p, tw_slot *frame)
{
    memcpy(frame + p->n_inputs, p->constants, p->n_constants * sizeof *frame);
}

/* ---- integers as NumPy has them: division rounds down, by zero it gives zero ------------------------------------- */

static inline int64_t floordiv(int64_t a, int64_t b)
{
    if (b == 0)
        return 0;
    if (b == -1)
        return (int64_t)(0 - (uint64_t)a);
    int64_t q = a / b;
    return q - ((a % b != 0) & ((a < 0) != (b < 0)));
}

static inline int64_t mod(int64_t a, int64_t b)
{
    if (b == 0 || b == -1)
        return 0;
    int64_t r = a % b;
    return r + ((r != 0) & ((r < 0) != (b < 0)) ? b : 0);
}

static inline int64_t gcd(int64_t a, int64_t b)
{
    uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
    while (y) {
        uint64_t r = x % y;
        x = y, y = r;
    }
    return (int64_t)x;
}

/* One step over n values. Three loops, so that the compiler vectorises each: a result lies beside what it is made of. */
#define EACH(N) _Pragma("GCC ivdep") for (int64_t i = 0; i < (N); i++)
#define LOOPS(T, R, EXPRESSION)                                                                                       \
    {                                                                                                                  \
        const int64_t n = s->n;                                                                                        \
        const tw_slot *a = frame + s->a, *b = frame + s->b;                                                            \
        tw_slot *out = frame + s->out;                                                                                 \
        if ((s->steps & 3) == 3)                                                                                       \
            EACH(n) {                                                                                                  \
                const __typeof__(a->T) x = a[i].T, y = b[i].T;                                                         \
                out[i].R = EXPRESSION;                                                                                 \
            }                                                                                                          \
        else if (s->steps & 1) {                                                                                       \
            const __typeof__(a->T) y = b->T;                                                                           \
            EACH(n) {                                                                                                  \
                const __typeof__(a->T) x = a[i].T;                                                                     \
                out[i].R = EXPRESSION;                                                                                 \
            }                                                                                                          \
        } else if (s->steps & 2) {                                                                                     \
            const __typeof__(a->T) x = a->T;                                                                           \
            EACH(n) {                                                                                                  \
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
        EACH(s->n) {                                                                                                   \
            const __typeof__(a->T) x = a[i].T;                                                                         \
            out[i].R = EXPRESSION;                                                                                     \
        }                                                                                                              \
        break;                                                                                                         \
    }
/* A single slot is checked: it is what a problem's own sizes give. */
#define CHECKED(CHECK, EXPRESSION)                                                                                     \
    if (s->n == 1) {                                                                                                   \
        int64_t result;                                                                                                \
        if (CHECK(frame[s->a].i, frame[s->b].i, &result))                                                              \
            return -1;                                                                                                 \
        frame[s->out].i = result;                                                                                      \
        break;                                                                                                         \
    }                                                                                                                  \
    LOOPS(i, i, (int64_t)(EXPRESSION))

TW_CLONES int tw_program_run(const tw_program *p, tw_slot *frame)
{
    const tw_step *end = p->steps + p->n_steps;
    for (const tw_step *s = p->steps; s < end; s++)
        switch (s->op) {
        case TW_ADD_I: CHECKED(__builtin_add_overflow, (uint64_t)x + (uint64_t)y)
        case TW_SUB_I: CHECKED(__builtin_sub_overflow, (uint64_t)x - (uint64_t)y)
        case TW_MUL_I: CHECKED(__builtin_mul_overflow, (uint64_t)x * (uint64_t)y)
        case TW_FLOORDIV_I: LOOPS(i, i, floordiv(x, y))
        case TW_MOD_I: LOOPS(i, i, mod(x, y))
        case TW_GCD_I: LOOPS(i, i, gcd(x, y))
        case TW_NEG_I: UNARY(i, i, (int64_t)(0 - (uint64_t)x))
        case TW_MIN_I: LOOPS(i, i, x < y ? x : y)
        case TW_MAX_I: LOOPS(i, i, x > y ? x : y)
        case TW_AND_I: LOOPS(i, i, x & y)
        case TW_OR_I: LOOPS(i, i, x | y)
        case TW_XOR_I: LOOPS(i, i, x ^ y)
        case TW_NOT_I: UNARY(i, i, ~x)
        case TW_NOT_B: UNARY(i, i, x ^ 1)
        case TW_EQ_I: LOOPS(i, i, x == y)
        case TW_NE_I: LOOPS(i, i, x != y)
        case TW_LT_I: LOOPS(i, i, x < y)
        case TW_LE_I: LOOPS(i, i, x <= y)
        case TW_ADD_F: LOOPS(f, f, x + y)
        case TW_SUB_F: LOOPS(f, f, x - y)
        case TW_MUL_F: LOOPS(f, f, x * y)
        case TW_DIV_F: LOOPS(f, f, x / y)
        case TW_NEG_F: UNARY(f, f, -x)
        /* NumPy's: one that is no number is the result, of two the first */
        case TW_MIN_F: LOOPS(f, f, x != x ? x : y < x ? y : y != y ? y : x)
        case TW_MAX_F: LOOPS(f, f, x != x ? x : y > x ? y : y != y ? y : x)
        case TW_CEIL_F: UNARY(f, f, ceil(x))
        case TW_FLOOR_F: UNARY(f, f, floor(x))
        case TW_LOG_F: p->math.log.run(p->math.log.context, &frame[s->a].f, &frame[s->out].f, s->n); break;
        case TW_LOG2_F: p->math.log2.run(p->math.log2.context, &frame[s->a].f, &frame[s->out].f, s->n); break;
        case TW_EQ_F: LOOPS(f, i, x == y)
        case TW_NE_F: LOOPS(f, i, x != y)
        case TW_LT_F: LOOPS(f, i, x < y)
        case TW_LE_F: LOOPS(f, i, x <= y)
        case TW_FLOAT_I: UNARY(i, f, (double)x)
        case TW_WHERE:
            EACH(s->n)
                frame[s->out + i] = frame[s->a + (s->steps & 1 ? i : 0)].i ? frame[s->b + (s->steps & 2 ? i : 0)]
                                                                             : frame[s->c + (s->steps & 4 ? i : 0)];
            break;
        case TW_EXPAND: {
            const int32_t *index = p->index + s->b;
            const tw_slot *a = frame + s->a;
            tw_slot *out = frame + s->out;
            EACH(s->n)
                out[i].i = a[index[i]].i;
            break;
        }
        }
    return 0;
}
