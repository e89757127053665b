/* gpu_helper M N K [--validate] [--model FILE]: select a kernel for a matrix product, run it and print JSON. Without
 * --model, TILEWISE_GEMM_MODEL names the model file. The exit status is 0, or 1 with "status": "error".
 *
 * The kernel runs through the library of CK Tile that holds it, of those in TILEWISE_CK_GEMM_LIB (files and folders,
 * separated by ':'). Without such a library the reference on the host computes the product; the time is null then,
 * since it would not be the kernel's. `python -m tilewise.dispatch.gpu_helper` runs Triton's kernels. */
#include "include/tilewise.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* libtilewise has functions of the same names as CK Tile's libraries. A library must call its own; glibc alone has this
 * flag, with _GNU_SOURCE. */
#ifndef RTLD_DEEPBIND
#define RTLD_DEEPBIND 0
#endif

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

/* The element type of the operands. Results have 16 bits: those of the type, or fp16 for fp8. */
enum { FP16, BF16, FP8, FP8_FNUZ, TYPES };

/* Return the type of a target's operands. gfx942 has an fp8 of its own. */
static int type_of(const char *target)
{
    if (strstr(target, "_fp8_"))
        return strstr(target, "_gfx942") ? FP8_FNUZ : FP8;
    return strstr(target, "_bf16_") ? BF16 : FP16;
}

/* Store an integer from -2 to 2 as element `at` of an operand. */
static void encode(void *operand, int64_t at, int x, int type)
{
    static const uint16_t BITS[TYPES][5] = {{0xc000, 0xbc00, 0x0000, 0x3c00, 0x4000},
                                            {0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000},
                                            {0xc0, 0xb8, 0x00, 0x38, 0x40},
                                            {0xc8, 0xc0, 0x00, 0x40, 0x48}};
    if (type >= FP8)
        ((uint8_t *)operand)[at] = (uint8_t)BITS[type][x + 2];
    else
        ((uint16_t *)operand)[at] = BITS[type][x + 2];
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

/* The functions of a library of CK Tile that run a kernel. */
typedef struct {
    int (*init)(void);
    int (*select)(int64_t, int64_t, int64_t, char *, int);
    int (*run)(const void *, const void *, void *, int64_t, int64_t, int64_t, float *);
} library;

/* Fill in a function of a library. Return 1, or 0 if the library lacks it. */
static int find(void *handle, const char *name, void *function)
{
    void *found = dlsym(handle, name);
    memcpy(function, (const void *)&found,
           sizeof found); /* ISO C has no cast from an object's pointer to a function's */
    return found != NULL;
}

/* Return the part of a kernel's name after its prefix, which has two spellings. */
static const char *config_of(const char *name)
{
    static const char *const PREFIXES[] = {"gemm_universal_", "gemm_"};
    for (int i = 0; i < 2; i++)
        if (!strncmp(name, PREFIXES[i], strlen(PREFIXES[i])))
            return name + strlen(PREFIXES[i]);
    return name;
}

/* Open a library if its own choice for the problem is the kernel `name`. Return 1 if it is. */
static int open_library(const char *path, const int64_t size[3], const char *name, library *lib)
{
    char chosen[256] = "";
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!handle || !find(handle, "dispatcher_init", (void *)&lib->init) ||
        !find(handle, "dispatcher_select_kernel", (void *)&lib->select) ||
        !find(handle, "dispatcher_run_gemm", (void *)&lib->run))
        return 0;
    return !lib->init() && !lib->select(size[0], size[1], size[2], chosen, sizeof chosen) &&
           !strcmp(config_of(chosen), config_of(name));
}

/* Search a file, or the *.so files of a folder. Return 1 if a library was opened. */
static int search(const char *path, const int64_t size[3], const char *name, library *lib)
{
    int found = 0;
    DIR *folder = opendir(path);
    if (!folder)
        return open_library(path, size, name, lib);
    for (const struct dirent *entry = readdir(folder); entry && !found; entry = readdir(folder)) {
        char file[4096];
        const size_t length = strlen(entry->d_name);
        if (length > 3 && !strcmp(entry->d_name + length - 3, ".so") &&
            snprintf(file, sizeof file, "%s/%s", path, entry->d_name) < (int)sizeof file)
            found = open_library(file, size, name, lib);
    }
    (void)closedir(folder);
    return found;
}

/* Find the library of a kernel among those that the environment names. Return 1 if there is one. */
static int find_library(const int64_t size[3], const char *name, library *lib)
{
    const char *named = getenv("TILEWISE_CK_GEMM_LIB");
    char *list = named ? strdup(named) : NULL, *rest = NULL;
    int found = 0;
    for (char *path = list ? strtok_r(list, ":", &rest) : NULL; path && !found; path = strtok_r(NULL, ":", &rest))
        found = search(path, size, name, lib);
    free(list);
    return found;
}

/* A selected kernel and its matrices. */
typedef struct {
    tilewise_model *model;
    tilewise_problem problem;
    int64_t size[3]; /* M, N, K */
    char kernel[256];
    int type;
    void *a, *b;
    uint16_t *c;
    float ms; /* of the kernel; negative where the reference computed */
} product;

/* Select a kernel, fill the operands and compute the product. Return TILEWISE_OK or an error. */
static int compute(product *p)
{
    const int64_t m = p->size[0], n = p->size[1], k = p->size[2], bytes = p->type >= FP8 ? 1 : 2;
    library lib = {NULL, NULL, NULL};
    p->a = malloc(m * k * bytes), p->b = malloc(k * n * bytes), p->c = malloc(m * n * sizeof *p->c);
    if (!p->a || !p->b || !p->c)
        return TILEWISE_NO_MEMORY;
    const int failed = tilewise_select_kernel(p->model, &p->problem, p->kernel, sizeof p->kernel);
    if (failed)
        return failed;
    for (int64_t i = 0; i < m * k; i++)
        encode(p->a, i, entry(i / k, i % k), p->type);
    for (int64_t i = 0; i < k * n; i++)
        encode(p->b, i, entry(i % k, i / k), p->type); /* column-major */
    p->ms = -1;
    if (find_library(p->size, p->kernel, &lib))
        return lib.run(p->a, p->b, p->c, m, n, k, &p->ms) || p->ms <= 0 ? TILEWISE_UNSUPPORTED : TILEWISE_OK;
    return tilewise_run(p->model, &p->problem, p->a, p->b, p->c, NULL);
}

/* Print the result as JSON. */
static void print_result(const product *p, int validate)
{
    const int64_t m = p->size[0], n = p->size[1], k = p->size[2];
    printf("{\"problem\": {\"M\": %lld, \"N\": %lld, \"K\": %lld}, \"kernel\": ", (long long)m, (long long)n,
           (long long)k);
    print_text(p->kernel);
    if (p->ms > 0)
        printf(", \"execution\": {\"time_ms\": %.6f, \"tflops\": %.6f}", p->ms,
               2e-9 * (double)m * (double)n * (double)k / p->ms);
    else
        printf(", \"execution\": {\"time_ms\": null, \"tflops\": null, \"computed_by\": \"host reference\"}");
    if (validate)
        printf(", \"validation\": {\"accuracy\": %.6f}", accuracy(p->c, m, n, k, p->type == BF16));
    printf(", \"status\": \"success\"}\n");
}

/* Run the command line. */
int main(int argc, char **argv)
{
    product p = {.problem = {.size = sizeof p.problem, .op = TILEWISE_GEMM}};
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
            p.size[given] = value;
            given++;
        }
    }
    if (given != 3 || !path)
        return failed(path ? "M, N and K are needed" : "set TILEWISE_GEMM_MODEL, or give --model FILE");
    if (tilewise_open(path, &p.model))
        return failed(tilewise_last_error());
    p.type = type_of(tilewise_target(p.model));
    p.problem.of.gemm.m = p.size[0], p.problem.of.gemm.n = p.size[1], p.problem.of.gemm.k = p.size[2];
    memcpy(p.problem.of.gemm.layout, "rcr", 4);
    const int code = compute(&p);
    if (!code)
        print_result(&p, validate);
    else if (code == TILEWISE_UNSUPPORTED && p.kernel[0])
        failed("the kernel's library, or the reference, failed");
    else
        failed(code == TILEWISE_NO_MEMORY ? "out of memory" : tilewise_last_error());
    free(p.a);
    free(p.b);
    free(p.c);
    tilewise_close(p.model);
    return code != 0;
}
