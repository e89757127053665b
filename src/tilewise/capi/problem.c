/* Problems: checks, sizes and columns. problem.h has the contract. */
#include "problem.h"
#include "error.h"

#include <stddef.h>
#include <string.h>

typedef __int128 int128; /* holds any product of two sizes */

const char *const TW_LAYOUT_NAMES[TW_LAYOUTS] = {"rcr", "rrr", "crr", "ccr"};
const char *const TW_CONV_LAYOUT_NAMES[TW_CONV_LAYOUTS] = {"NHWGC", "NGCHW"};

/* Return the product of sizes that are all at least 1, or -1 if it does not fit int64. */
static int64_t product(const int64_t *sizes, int count)
{
    int64_t result = 1;
    for (int i = 0; i < count; i++)
        if (__builtin_mul_overflow(result, sizes[i], &result))
            return -1;
    return result;
}

/* Return the index of a layout among `count` names, or -1. */
static int index_of(const char layout[8], const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (!strncmp(layout, names[i], 8))
            return i;
    return -1;
}

/* Return the index of a matrix product's layout in TW_LAYOUT_NAMES, or -1. */
static int layout_of(const char layout[8])
{
    return index_of(layout, TW_LAYOUT_NAMES, TW_LAYOUTS);
}

int tw_conv_layout(const tilewise_conv *conv)
{
    return conv->layout[0] ? index_of(conv->layout, TW_CONV_LAYOUT_NAMES, TW_CONV_LAYOUTS) : 0;
}

/* Return TILEWISE_OK or TILEWISE_BAD_PROBLEM. */
static int check_gemm(const tilewise_gemm *p)
{
    if (p->m < 1 || p->n < 1 || p->k < 1)
        return tw_set_error(TILEWISE_BAD_PROBLEM, "M, N and K must be at least 1, got %lld, %lld, %lld",
                            (long long)p->m, (long long)p->n, (long long)p->k);
    if (layout_of(p->layout) < 0)
        return tw_set_error(TILEWISE_BAD_PROBLEM, "layout must be rcr, rrr, crr or ccr, got '%.8s'", p->layout);
    if (product((int64_t[]){2, p->m, p->n, p->k}, 4) < 0)
        return tw_set_error(TILEWISE_BAD_PROBLEM, "2 M N K must fit int64");
    return TILEWISE_OK;
}

typedef struct {
    const char *name;
    int64_t size, filter, stride, pad, dilation;
} axis;

/* Write the depth, height and width axes of a convolution. */
static void axes_of(const tilewise_conv *p, axis axes[3])
{
    axes[0] = (axis){"depth", p->di, p->z, p->stride_d, p->pad_d, p->dilation_d};
    axes[1] = (axis){"height", p->hi, p->y, p->stride_h, p->pad_h, p->dilation_h};
    axes[2] = (axis){"width", p->wi, p->x, p->stride_w, p->pad_w, p->dilation_w};
}

/* Return by how much the dilated filter can move; negative if it is larger than the padded input. */
static int128 filter_range(const axis *a)
{
    return a->size + 2 * (int128)a->pad - (a->dilation * ((int128)a->filter - 1) + 1);
}

void tw_output_sizes(const tilewise_conv *p, int64_t sizes[3])
{
    axis axes[3];
    axes_of(p, axes);
    for (int i = 0; i < 3; i++)
        sizes[i] = (int64_t)(filter_range(&axes[i]) / axes[i].stride + 1);
}

/* Return TILEWISE_OK or TILEWISE_BAD_PROBLEM. */
static int check_conv(const tilewise_conv *p)
{
    axis axes[3];
    axes_of(p, axes);
    if (p->n < 1 || p->c < 1 || p->k < 1 || p->g < 1)
        return tw_set_error(TILEWISE_BAD_PROBLEM, "N, C, K and G must be at least 1");
    if (tw_conv_layout(p) < 0)
        return tw_set_error(TILEWISE_BAD_PROBLEM, "layout must be NHWGC or NGCHW, got '%.8s'", p->layout);
    if (p->c % p->g || p->k % p->g)
        return tw_set_error(TILEWISE_BAD_PROBLEM, "C and K must be divisible by G");
    for (int i = 0; i < 3; i++) {
        const axis *a = &axes[i];
        if (a->size < 1 || a->filter < 1 || a->stride < 1 || a->dilation < 1 || a->pad < 0)
            return tw_set_error(TILEWISE_BAD_PROBLEM,
                                "%s: size, filter, stride and dilation must be at least 1, and pad at least 0",
                                a->name);
        if (filter_range(a) < 0)
            return tw_set_error(TILEWISE_BAD_PROBLEM, "%s: the dilated filter must not be larger than the padded input",
                                a->name);
        if (filter_range(a) / a->stride >= INT64_MAX)
            return tw_set_error(TILEWISE_BAD_PROBLEM, "%s: the output size must fit int64", a->name);
    }
    int64_t out[3];
    tw_output_sizes(p, out);
    if (product((int64_t[]){2, p->n, out[0], out[1], out[2], p->k, p->z, p->y, p->x, p->c / p->g}, 10) < 0)
        return tw_set_error(TILEWISE_BAD_PROBLEM, "the number of FLOPs must fit int64");
    if (product((int64_t[]){p->n, p->di, p->hi, p->wi, p->c}, 5) < 0)
        return tw_set_error(TILEWISE_BAD_PROBLEM, "the number of input elements must fit int64");
    return TILEWISE_OK;
}

int tw_problem_check(const tilewise_problem *p)
{
    if (!p)
        return tw_set_error(TILEWISE_BAD_ARGUMENT, "problem is NULL");
    if (p->size != sizeof *p)
        return tw_set_error(TILEWISE_BAD_ARGUMENT,
                            "problem.size must be sizeof(tilewise_problem), %zu in this library, got %u", sizeof *p,
                            p->size);
    if (p->op != TILEWISE_GEMM && p->op != TILEWISE_CONV)
        return tw_set_error(TILEWISE_BAD_ARGUMENT, "problem.op must be TILEWISE_GEMM or TILEWISE_CONV, got %u", p->op);
    return p->op == TILEWISE_GEMM ? check_gemm(&p->of.gemm) : check_conv(&p->of.conv);
}

void tw_problem_columns(const tilewise_problem *p, const int64_t layouts[TW_LAYOUTS], int64_t *inputs)
{
    if (p->op == TILEWISE_GEMM) {
        const tilewise_gemm *gemm = &p->of.gemm;
        inputs[0] = gemm->m, inputs[1] = gemm->n, inputs[2] = gemm->k;
        inputs[3] = layouts[layout_of(gemm->layout)];
    } else {
        const tilewise_conv *conv = &p->of.conv;
        _Static_assert(offsetof(tilewise_conv, layout) == TW_SIZES * sizeof *inputs, "tilewise.ops' columns, in order");
        memcpy(inputs, conv, TW_SIZES * sizeof *inputs);
        inputs[TW_SIZES] = layouts[tw_conv_layout(conv)];
    }
}

int tw_direction(uint32_t op, const char *variant)
{
    static const char *const names[TW_DIRECTIONS] = {"forward", "bwd_data", "bwd_weight"};
    for (int i = 0; op == TILEWISE_CONV && i < TW_DIRECTIONS; i++)
        if (!strcmp(variant, names[i]))
            return i;
    return op == TILEWISE_GEMM && !strcmp(variant, "universal") ? 0 : -1;
}

int tw_problem_work(const tilewise_problem *p, const char *dtype, double *flops, double *bytes)
{
    static const struct {
        const char *name;
        double operand, result;
    } types[] = {{"bf16", 2, 2}, {"fp16", 2, 2}, {"fp8", 1, 2}, {"fp32", 4, 4}};
    int type = 0;
    while (type < 4 && strcmp(types[type].name, dtype) != 0)
        type++;
    if (type == 4)
        return -1;
    double read, written;
    if (p->op == TILEWISE_GEMM) {
        const tilewise_gemm *g = &p->of.gemm;
        *flops = 2.0 * (double)g->m * (double)g->n * (double)g->k;
        read = (double)g->m * (double)g->k + (double)g->k * (double)g->n;
        written = (double)g->m * (double)g->n;
    } else {
        const tilewise_conv *c = &p->of.conv;
        int64_t out[3];
        tw_output_sizes(c, out);
        const int64_t of_group = c->c / c->g;
        double filter = (double)c->z * (double)c->y * (double)c->x * (double)of_group * (double)c->k;
        double pixels = (double)c->n * (double)out[0] * (double)out[1] * (double)out[2];
        *flops = 2.0 * pixels * filter;
        read = (double)c->n * (double)c->di * (double)c->hi * (double)c->wi * (double)c->c + filter;
        written = pixels * (double)c->k;
    }
    *bytes = types[type].operand * read + types[type].result * written;
    return 0;
}
