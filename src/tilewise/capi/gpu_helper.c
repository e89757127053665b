/* gpu_helper M N K [--validate] [--model FILE]: select a kernel for a matrix product, run it and print JSON. Without
 * --model, TILEWISE_GEMM_MODEL names the model file. The exit status is 0, or 1 with "status": "error". */
#include "include/tilewise.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHECKED = 4096, SIZE_MOST = 1 << 16 };

/* Return an element of a test matrix: a small integer, so that sums are exact and a correct result differs from
 * them by its rounding alone. */
static int entry(int64_t row, int64_t column)
{
    return (int)((row * 7 + column * 5 + row * column % 3) % 5) - 2;
}

/* Return the number with these bits. bf16 has the high bits of a float; fp16 has another exponent bias. */
static double decode(uint16_t bits, int is_bf16)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    if (is_bf16)
        return x;
    int exponent = bits >> 10 & 31, rest = bits & 1023;
    double size = exponent ? ldexp(1024 + rest, exponent - 25) : ldexp(rest, -24);
    return bits >> 15 ? -size : size;
}

/* Return the bits of an integer from -2 to 2. */
static uint16_t encode(int x, int is_bf16)
{
    static const uint16_t FP16[5] = {0xc000, 0xbc00, 0x0000, 0x3c00, 0x4000};
    static const uint16_t BF16[5] = {0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000};
    return (is_bf16 ? BF16 : FP16)[x + 2];
}

/* Print a JSON string. */
static void print_text(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        if ((unsigned char)*text >= ' ')
            putchar(*text);
    }
    putchar('"');
}

/* Print an error as JSON and return the exit status. */
static int failed(const char *why)
{
    printf("{\"status\": \"error\", \"error\": ");
    print_text(why);
    printf("}\n");
    return 1;
}

/* Return the percentage of results that equal the exact sum up to rounding. At most CHECKED results are checked, at
 * equal steps. */
static double accuracy(const uint16_t *c, int64_t m, int64_t n, int64_t k, int is_bf16)
{
    int64_t count = m * n, step = count / CHECKED + 1, right = 0, checked = 0;
    for (int64_t at = 0; at < count; at += step, checked++) {
        int64_t sum = 0;
        for (int64_t i = 0; i < k; i++)
            sum += (int64_t)entry(at / n, i) * entry(i, at % n);
        right += fabs(decode(c[at], is_bf16) - (double)sum) <= fabs((double)sum) * ldexp(1, is_bf16 ? -8 : -11);
    }
    return 100.0 * (double)right / (double)checked;
}

/* Return the size that a text holds, or -1. */
static int64_t size_of(const char *text)
{
    char *end;
    errno = 0;
    long long size = strtoll(text, &end, 10);
    return *text && !*end && !errno && size >= 1 && size <= SIZE_MOST ? size : -1;
}

/* Run the command line. */
int main(int argc, char **argv)
{
    int64_t size[3] = {0};
    int given = 0, validate = 0;
    const char *path = getenv("TILEWISE_GEMM_MODEL");
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--validate"))
            validate = 1;
        else if (!strcmp(argv[i], "--model") && i + 1 < argc)
            path = argv[++i];
        else {
            const int64_t value = given < 3 ? size_of(argv[i]) : -1;
            if (value < 0)
                return failed("usage: gpu_helper M N K [--validate] [--model FILE], with sizes from 1 to 65536");
            size[given] = value;
            given++;
        }
    }
    if (given != 3 || !path)
        return failed(path ? "M, N and K are needed" : "set TILEWISE_GEMM_MODEL, or give --model FILE");
    const int64_t m = size[0], n = size[1], k = size[2];
    tilewise_model *model;
    if (tilewise_open(path, &model))
        return failed(tilewise_last_error());
    tilewise_problem problem = {.size = sizeof problem, .op = TILEWISE_GEMM};
    problem.of.gemm.m = m, problem.of.gemm.n = n, problem.of.gemm.k = k;
    memcpy(problem.of.gemm.layout, "rcr", 4);
    char name[256];
    float ms = -1;
    const int is_bf16 = strstr(tilewise_target(model), "_bf16_") != NULL;
    uint16_t *a = malloc(m * k * sizeof *a), *b = malloc(k * n * sizeof *b), *c = malloc(m * n * sizeof *c);
    int code = a && b && c ? tilewise_select_kernel(model, &problem, name, sizeof name) : TILEWISE_NO_MEMORY;
    for (int64_t i = 0; !code && i < m * k; i++)
        a[i] = encode(entry(i / k, i % k), is_bf16);
    for (int64_t i = 0; !code && i < k * n; i++)
        b[i] = encode(entry(i % k, i / k), is_bf16); /* column-major */
    if (!code)
        code = tilewise_run(model, &problem, a, b, c, &ms);
    if (code) {
        failed(a && b && c ? tilewise_last_error() : "out of memory");
    } else {
        double tflops = ms > 0 ? 2e-9 * (double)m * (double)n * (double)k / ms : 0;
        printf("{\"problem\": {\"M\": %lld, \"N\": %lld, \"K\": %lld}, \"kernel\": ", (long long)m, (long long)n,
               (long long)k);
        print_text(name);
        printf(", \"execution\": {\"time_ms\": %.6f, \"tflops\": %.6f}", ms, tflops);
        if (validate)
            printf(", \"validation\": {\"accuracy\": %.6f}", accuracy(c, m, n, k, is_bf16));
        printf(", \"status\": \"success\"}\n");
    }
    free(a);
    free(b);
    free(c);
    tilewise_close(model);
    return code != 0;
}
