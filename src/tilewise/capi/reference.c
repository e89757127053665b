/* The reference kernels: products in the order of the formula, sums in double. */
#include "error.h"
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    size_t bytes;
    float (*load)(const void *from);
    void (*store)(void *to, double x);
} element;

/* Return the number at `from`. */
static float load_fp32(const void *from)
{
    float x;
    memcpy(&x, from, sizeof x);
    return x;
}

/* Store x, rounded to fp32. */
static void store_fp32(void *to, double x)
{
    float y = (float)x;
    memcpy(to, &y, sizeof y);
}

/* Return the number at `from`, which has 1 sign bit, 15 - `fraction` bits of exponent and `fraction` bits of
 * fraction. */
static float load_16(const void *from, int fraction)
{
    uint16_t bits;
    memcpy(&bits, from, sizeof bits);
    const int top = (1 << (15 - fraction)) - 1, bias = top >> 1;
    int exponent = bits >> fraction & top, rest = bits & ((1 << fraction) - 1);
    double x = exponent == top ? (rest ? NAN : INFINITY)
               : exponent      ? ldexp(rest + (1 << fraction), exponent - bias - fraction)
                               : ldexp(rest, 1 - bias - fraction);
    return (float)(bits >> 15 ? -x : x);
}

/* Store x in the format of load_16, rounded once, to the nearest, ties to even. */
static void store_16(void *to, double x, int fraction)
{
    const int top = (1 << (15 - fraction)) - 1, bias = top >> 1;
    uint16_t sign = signbit(x) ? 0x8000 : 0, bits;
    double size = fabs(x);
    if (isnan(x)) {
        bits = (uint16_t)(top << fraction | 1 << (fraction - 1));
    } else if (isinf(x)) {
        bits = (uint16_t)(top << fraction);
    } else {
        int exponent;
        frexp(size, &exponent); /* size is 0.5 to 1 times 2^exponent */
        exponent = size > 0 && exponent - 1 >= 1 - bias ? exponent - 1 : 1 - bias;
        double units = nearbyint(ldexp(size, fraction - exponent)); /* up to 2^(fraction + 1) */
        /* A subnormal number has no leading one. Rounding up to the next power of two carries into the exponent. */
        double whole = units + ldexp(exponent + bias - 1, fraction);
        bits = (uint16_t)(whole < ldexp(top, fraction) ? whole : ldexp(top, fraction));
    }
    bits |= sign;
    memcpy(to, &bits, sizeof bits);
}

/* Return the bf16 number at `from`. */
static float load_bf16(const void *from)
{
    return load_16(from, 7);
}
/* Return the fp16 number at `from`. */
static float load_fp16(const void *from)
{
    return load_16(from, 10);
}
/* Store x, rounded to bf16. */
static void store_bf16(void *to, double x)
{
    store_16(to, x, 7);
}
/* Store x, rounded to fp16. */
static void store_fp16(void *to, double x)
{
    store_16(to, x, 10);
}

/* Return the e4m3 number at `from`: 4 bits of exponent with this bias, 3 bits of fraction, and `nan` for its NaN. The
 * formats have no infinity. */
static float load_e4m3(const void *from, int bias, uint8_t nan)
{
    uint8_t bits;
    memcpy(&bits, from, sizeof bits);
    const int exponent = bits >> 3 & 15, rest = bits & 7;
    if (bits == nan || (nan == 0x7f && bits == 0xff))
        return NAN;
    double x = exponent ? ldexp(rest + 8, exponent - bias - 3) : ldexp(rest, 1 - bias - 3);
    return (float)(bits >> 7 ? -x : x);
}
/* Return the number at `from` in the format of OCP, which most GPUs multiply. */
static float load_fp8(const void *from)
{
    return load_e4m3(from, 7, 0x7f);
}
/* Return the number at `from` in the format of gfx942, which has another bias and no negative zero. */
static float load_fp8_fnuz(const void *from)
{
    return load_e4m3(from, 8, 0x80);
}

/* Return the element type of a dtype's operands, or of its result; NULL if it is unknown. Products of fp8 are fp16. */
static const element *element_of(const char *dtype, int of_result)
{
    static const struct {
        const char *name;
        element operand, result;
    } known[] = {{"fp32", {4, load_fp32, store_fp32}, {4, load_fp32, store_fp32}},
                 {"bf16", {2, load_bf16, store_bf16}, {2, load_bf16, store_bf16}},
                 {"fp16", {2, load_fp16, store_fp16}, {2, load_fp16, store_fp16}},
                 {"fp8", {1, load_fp8, NULL}, {2, load_fp16, store_fp16}},
                 {"fp8_fnuz", {1, load_fp8_fnuz, NULL}, {2, load_fp16, store_fp16}}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(dtype, known[i].name))
            return of_result ? &known[i].result : &known[i].operand;
    return NULL;
}

/* Return `count` elements as floats, which the caller frees; NULL when out of memory. */
static float *load_all(const element *e, const void *from, int64_t count)
{
    float *x = calloc((size_t)count, sizeof *x);
    for (int64_t i = 0; x && i < count; i++)
        x[i] = e->load((const char *)from + (size_t)i * e->bytes);
    return x;
}

typedef struct {
    int64_t a, b, result; /* number of elements */
} counts;

/* Add the product of A and B to `sum`, all in the problem's layout. */
static void gemm(const tilewise_gemm *p, const float *a, const float *b, double *sum)
{
    /* element (row, column) lies at row * step[0] + column * step[1] */
    const int64_t by_row[3][2] = {{p->k, 1}, {p->n, 1}, {p->n, 1}}, by_column[3][2] = {{1, p->m}, {1, p->k}, {1, p->m}};
    const int64_t *step[3];
    for (int i = 0; i < 3; i++)
        step[i] = p->layout[i] == 'r' ? by_row[i] : by_column[i];
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t k = 0; k < p->k; k++) {
            const double x = a[i * step[0][0] + k * step[0][1]];
            for (int64_t j = 0; j < p->n; j++)
                sum[i * step[2][0] + j * step[2][1]] += x * b[k * step[1][0] + j * step[1][1]];
        }
}

/* Add the convolution in the given direction to `sum`: the products of each input pixel and the output pixels that
 * filter positions connect it with, over all channels of their groups. */
static void conv(const tilewise_conv *p, int direction, const float *a, const float *b, double *sum)
{
    const int64_t c = p->c / p->g, k = p->k / p->g;
    int64_t out[3];
    tw_output_sizes(p, out);
    for (int64_t pixel = 0; pixel < p->n * out[0] * out[1] * out[2]; pixel++) {
        const int64_t wo = pixel % out[2], ho = pixel / out[2] % out[1], od = pixel / out[2] / out[1] % out[0];
        const int64_t image = pixel / out[2] / out[1] / out[0];
        for (int64_t tap = 0; tap < p->z * p->y * p->x; tap++) {
            const int64_t d = od * p->stride_d - p->pad_d + tap / p->x / p->y * p->dilation_d;
            const int64_t h = ho * p->stride_h - p->pad_h + tap / p->x % p->y * p->dilation_h;
            const int64_t w = wo * p->stride_w - p->pad_w + tap % p->x * p->dilation_w;
            if (d < 0 || d >= p->di || h < 0 || h >= p->hi || w < 0 || w >= p->wi)
                continue;
            const int64_t from = (((image * p->di + d) * p->hi + h) * p->wi + w) * p->c;
            for (int64_t f = 0; f < p->k; f++) {
                const int64_t x = from + f / k * c, y = pixel * p->k + f, weight = (f * p->z * p->y * p->x + tap) * c;
                if (direction == TW_FORWARD)
                    for (int64_t i = 0; i < c; i++)
                        sum[y] += (double)a[x + i] * b[weight + i];
                else if (direction == TW_BWD_DATA)
                    for (int64_t i = 0; i < c; i++)
                        sum[x + i] += (double)a[y] * b[weight + i];
                else
                    for (int64_t i = 0; i < c; i++)
                        sum[weight + i] += (double)a[x + i] * b[y];
            }
        }
    }
}

/* Return the numbers of elements of both operands and the result. */
static counts counts_of(const tilewise_problem *problem, int direction)
{
    if (problem->op == TILEWISE_GEMM) {
        const tilewise_gemm *p = &problem->of.gemm;
        return (counts){p->m * p->k, p->k * p->n, p->m * p->n};
    }
    const tilewise_conv *p = &problem->of.conv;
    int64_t out[3];
    tw_output_sizes(p, out);
    int64_t x = p->n * p->di * p->hi * p->wi * p->c, w = p->k * p->z * p->y * p->x * (p->c / p->g);
    int64_t y = p->n * out[0] * out[1] * out[2] * p->k;
    return direction == TW_FORWARD    ? (counts){x, w, y}
           : direction == TW_BWD_DATA ? (counts){y, w, x}
                                      : (counts){x, y, w};
}

int tilewise_reference(const char *dtype, const char *variant, const tilewise_problem *problem, const void *a,
                       const void *b, void *result)
{
    if (!dtype || !variant || !a || !b || !result)
        return tw_set_error(TILEWISE_BAD_ARGUMENT, "dtype, variant and arrays must not be NULL");
    int failed = tw_problem_check(problem);
    if (failed)
        return failed;
    if (problem->op == TILEWISE_CONV && tw_conv_layout(&problem->of.conv) != 0)
        return tw_set_error(TILEWISE_UNSUPPORTED, "the reference computes channels last (NHWGC) only, got %.8s",
                            problem->of.conv.layout);
    const element *operand = element_of(dtype, 0), *stored = element_of(dtype, 1);
    if (!operand)
        return tw_set_error(TILEWISE_UNSUPPORTED, "dtype must be fp32, bf16, fp16, fp8 or fp8_fnuz, got %s", dtype);
    const int direction = tw_direction(problem->op, variant);
    if (direction < 0)
        return tw_set_error(TILEWISE_BAD_ARGUMENT, "variant %s does not belong to the problem's op", variant);
    const counts n = counts_of(problem, direction);
    double *sum = calloc((size_t)n.result, sizeof *sum);
    float *x = sum ? load_all(operand, a, n.a) : NULL, *y = x ? load_all(operand, b, n.b) : NULL;
    if (y) {
        if (problem->op == TILEWISE_GEMM)
            gemm(&problem->of.gemm, x, y, sum);
        else
            conv(&problem->of.conv, direction, x, y, sum);
        for (int64_t i = 0; i < n.result; i++)
            stored->store((char *)result + (size_t)i * stored->bytes, sum[i]);
    } else {
        failed = tw_set_error(TILEWISE_NO_MEMORY, "out of memory for %lld + %lld + %lld elements", (long long)n.a,
                              (long long)n.b, (long long)n.result);
    }
    free(y);
    free(x);
    free(sum);
    return failed;
}

int tilewise_run(const tilewise_model *m, const tilewise_problem *problem, const void *a, const void *b, void *result,
                 float *time_ms)
{
    struct timespec begin, end;
    if (time_ms)
        *time_ms = -1.0F;
    const int best = tw_best_kernel(m, problem);
    if (best < 0)
        return best;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    const int is_fnuz = !strcmp(m->dtype, "fp8") && strstr(m->target, "_gfx942") != NULL;
    int failed = tilewise_reference(is_fnuz ? "fp8_fnuz" : m->dtype, m->variant, problem, a, b, result);
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (!failed && time_ms)
        *time_ms = (float)((double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) * 1e-6);
    return failed;
}
