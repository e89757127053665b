/* tilewise: which kernel computes a matrix product or a convolution fastest, asked from C.
 *
 * A model is one file, written by `python -m tilewise.capi export MODEL_FOLDER FILE`. docs/c-api.md has the rest.
 *
 * Threads: one model may be asked by any number of threads at once; who closes it sees to it that nobody asks any more.
 * The dispatcher_ and conv_dispatcher_ functions share models of their own and lock what they need.
 * Pointers to arrays are host pointers. A function that fails says why in tilewise_last_error().
 */
#ifndef TILEWISE_PUBLIC_H
#define TILEWISE_PUBLIC_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TILEWISE_API __attribute__((visibility("default")))
#else
#define TILEWISE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TILEWISE_OK = 0,
    TILEWISE_BAD_ARGUMENT = -1,     /* a null pointer, an index outside, a struct of another size */
    TILEWISE_NO_KERNEL = -2,        /* none of the model's kernels supports the problem */
    TILEWISE_NOT_READY = -3,        /* no model was loaded */
    TILEWISE_BAD_FILE = -4,         /* missing, damaged, or no model file of this version */
    TILEWISE_BUFFER_TOO_SMALL = -5, /* for the kernel's name and its \0 */
    TILEWISE_BAD_PROBLEM = -6,      /* an impossible problem, or one of another op than the model's */
    TILEWISE_NO_MEMORY = -7,
    TILEWISE_UNSUPPORTED = -8       /* sizes beyond 64 bits in a formula; a type that has no reference kernel */
};

/* Why the last function that failed in this thread did; "" before. Valid until the next failure in this thread. */
TILEWISE_API const char *tilewise_last_error(void);

/* ---- problems ----------------------------------------------------------------------------------------------------- */

enum { TILEWISE_GEMM = 1, TILEWISE_CONV = 2 };

typedef struct {
    int64_t m, n, k;
    char layout[8]; /* of A, B and C: "rcr", "rrr", "crr" or "ccr", r by row, c by column; \0 to the end */
} tilewise_gemm;

/* C and K count over all groups; a 2D convolution has di = z = stride_d = dilation_d = 1 and pad_d = 0. */
typedef struct {
    int64_t n, c, k, g, hi, wi, y, x, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int64_t di, z, stride_d, pad_d, dilation_d;
} tilewise_conv;

typedef struct {
    uint32_t size; /* sizeof(tilewise_problem), so that another version of it is refused */
    uint32_t op;   /* TILEWISE_GEMM or TILEWISE_CONV: which of the two is set */
    union {
        tilewise_gemm gemm;
        tilewise_conv conv;
    } of;
} tilewise_problem;

/* ---- models ------------------------------------------------------------------------------------------------------- */

typedef struct tilewise_model tilewise_model;

/* Read a model file; *model is set to NULL on failure. */
TILEWISE_API int tilewise_open(const char *path, tilewise_model **model);
TILEWISE_API void tilewise_close(tilewise_model *model); /* NULL is fine */

/* "{op}_{variant}_{dtype}_{arch}", and the kernels as CK Tile's registry exports them; valid until the model is closed.
 * NULL for NULL. */
TILEWISE_API const char *tilewise_target(const tilewise_model *model);
TILEWISE_API const char *tilewise_export_json(const tilewise_model *model);

/* How many kernels; the name of one, 0 <= index < count, into `name` of `size` bytes. */
TILEWISE_API int tilewise_kernel_count(const tilewise_model *model);
TILEWISE_API int tilewise_kernel_name(const tilewise_model *model, int index, char *name, size_t size);

/* 1 where some kernel supports the problem, 0 where none does. */
TILEWISE_API int tilewise_is_supported(const tilewise_model *model, const tilewise_problem *problem);

/* The name of the kernel to launch, into `name` of `size` bytes. */
TILEWISE_API int tilewise_select_kernel(const tilewise_model *model, const tilewise_problem *problem, char *name,
                                        size_t size);

/* The supported kernels, best first, at most `most` of them: indices into `kernels`, and scores (the higher the faster;
 * NULL: not wanted). How many, or an error. */
TILEWISE_API int tilewise_rank(const tilewise_model *model, const tilewise_problem *problem, int most,
                               int32_t *kernels, double *scores);

/* ---- the reference: computed on the host, slow and sure ----------------------------------------------------------- */

/* Select a kernel, then let the reference compute in the model's type. GEMM: a = A, b = B, result = C. Convolution:
 * forward X, W, Y; backward data dY, W, dX; backward weight X, dY, dW; NHWGC, GKYXC, NHWGK (NDHWGC ...). `time_ms`
 * (NULL: not wanted) is what the reference took; -1 on failure. */
TILEWISE_API int tilewise_run(const tilewise_model *model, const tilewise_problem *problem, const void *a, const void *b,
                              void *result, float *time_ms);

/* The same without a model. `dtype`: "fp32", "bf16" or "fp16"; `variant`: "universal", "forward", "bwd_data" or
 * "bwd_weight". Sums are double, rounded once, to the nearest, ties to even. */
TILEWISE_API int tilewise_reference(const char *dtype, const char *variant, const tilewise_problem *problem,
                                    const void *a, const void *b, void *result);

/* ---- as CK Tile's GEMM library has them --------------------------------------------------------------------------- */

/* From the file that TILEWISE_GEMM_MODEL names, problems in the layout that TILEWISE_GEMM_LAYOUT names (not set: rcr); or
 * from these. 0, or -1: what was loaded before is still there. */
TILEWISE_API int dispatcher_init(void);
TILEWISE_API int dispatcher_init_from(const char *path, const char *layout);
TILEWISE_API int dispatcher_is_supported(int64_t M, int64_t N, int64_t K); /* 1; 0 also on errors */
TILEWISE_API int dispatcher_select_kernel(int64_t M, int64_t N, int64_t K, char *name, int size); /* 0, or -1 */
/* 0; -1 error; -2 no kernel supports it. time_ms is -1 then. */
TILEWISE_API int dispatcher_run_gemm(const void *A, const void *B, void *C, int64_t M, int64_t N, int64_t K,
                                     float *time_ms);
TILEWISE_API int dispatcher_get_kernel_count(void); /* 0 before dispatcher_init */
TILEWISE_API const char *dispatcher_export_registry_json(void); /* NULL before; valid until cleanup or the next init */
TILEWISE_API void dispatcher_cleanup(void);

/* ---- as CK Tile's convolution libraries have them ----------------------------------------------------------------- */

typedef struct {
    int N, G, C, K; /* C and K over all groups */
    int input_d, input_h, input_w;
    int filter_z, filter_y, filter_x;
    int stride_d, stride_h, stride_w;
    int pad_d, pad_h, pad_w;
    int dilation_d, dilation_h, dilation_w;
    int direction; /* 0 forward, 1 backward data, 2 backward weight */
} ConvProblemC;

/* From the files that TILEWISE_CONV_MODEL names, one a direction, separated by ':'; or from one file, which takes the
 * place of its direction's model. 0, or -1: what was loaded before is still there. */
TILEWISE_API int conv_dispatcher_init(void);
TILEWISE_API int conv_dispatcher_init_from(const char *path);
TILEWISE_API int conv_dispatcher_is_supported(const ConvProblemC *problem); /* 1; 0 also on errors */
TILEWISE_API int conv_dispatcher_select_kernel(const ConvProblemC *problem, char *name, int size); /* 0, or -1 */
/* Milliseconds, negative on error: -2 where no kernel supports it. `stream` must be NULL: the reference has none. */
TILEWISE_API float conv_dispatcher_run(const void *a, const void *b, void *result, const ConvProblemC *problem,
                                       void *stream);
TILEWISE_API int conv_dispatcher_get_kernel_count(void); /* of all directions; 0 before conv_dispatcher_init */
TILEWISE_API int conv_dispatcher_cleanup(void);

#ifdef __cplusplus
}
#endif

#endif
