/* tilewise: selection of the fastest kernel for a matrix product or a convolution, from C.
 *
 * A model is one file, written by `python -m tilewise.capi export MODEL_FOLDER FILE`. See docs/c-api.md.
 *
 * Threads: any number of threads may use one model at once. Close a model only when no call on it is running.
 * The dispatcher_ and conv_dispatcher_ functions share models of the process and lock them internally.
 * Memory: arrays belong to the caller and are host pointers. A model belongs to the caller of tilewise_open until
 * tilewise_close. Functions that fail store a message for tilewise_last_error().
 */
#ifndef TILEWISE_PUBLIC_H
#define TILEWISE_PUBLIC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __GNUC__
#define TILEWISE_API __attribute__((visibility("default")))
#else
#define TILEWISE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TILEWISE_OK = 0,
    TILEWISE_BAD_ARGUMENT = -1,     /* a null pointer, an index out of range, a struct of another size */
    TILEWISE_NO_KERNEL = -2,        /* no kernel of the model supports the problem */
    TILEWISE_NOT_READY = -3,        /* no model is loaded */
    TILEWISE_BAD_FILE = -4,         /* missing, damaged, or not a model file of this version */
    TILEWISE_BUFFER_TOO_SMALL = -5, /* for the kernel's name and its terminating zero */
    TILEWISE_BAD_PROBLEM = -6,      /* sizes are invalid, or the op is not the model's */
    TILEWISE_NO_MEMORY = -7,
    TILEWISE_UNSUPPORTED = -8 /* a formula does not fit int64, or the reference lacks the type */
};

/* Return the message of the last failure in this thread, "" before the first. Valid until the next failure in this
 * thread; do not free it. */
TILEWISE_API const char *tilewise_last_error(void);

/* ---- problems -----------------------------------------------------------------------------------------------------
 */

enum { TILEWISE_GEMM = 1, TILEWISE_CONV = 2 };

typedef struct {
    int64_t m, n, k;
    char layout[8]; /* of A, B and C: "rcr", "rrr", "crr" or "ccr" (r: row-major, c: column-major), padded with \0 */
} tilewise_gemm;

/* C and K count the channels of all groups. A 2D convolution has di = z = stride_d = dilation_d = 1 and pad_d = 0. */
typedef struct {
    int64_t n, c, k, g, hi, wi, y, x, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int64_t di, z, stride_d, pad_d, dilation_d;
    char layout[8]; /* "NHWGC" (channels last) or "NGCHW" (channels first), in 3D too, padded with \0; "": NHWGC */
} tilewise_conv;

typedef struct {
    uint32_t size; /* sizeof(tilewise_problem); other sizes are refused, as they mean another version */
    uint32_t op;   /* TILEWISE_GEMM or TILEWISE_CONV: the member of `of` that is set */
    union {
        tilewise_gemm gemm;
        tilewise_conv conv;
    } of;
} tilewise_problem;

/* ---- models -------------------------------------------------------------------------------------------------------
 */

typedef struct tilewise_model tilewise_model;

/* Read a model file into *model, which the caller closes; NULL on failure. Return TILEWISE_OK or an error. */
TILEWISE_API int tilewise_open(const char *path, tilewise_model **model);

/* Free a model. NULL is allowed. */
TILEWISE_API void tilewise_close(tilewise_model *model);

/* Return "{op}_{variant}_{dtype}_{arch}", and the kernels in the JSON of CK Tile's registry. Both belong to the model.
 * NULL for NULL. */
TILEWISE_API const char *tilewise_target(const tilewise_model *model);
TILEWISE_API const char *tilewise_export_json(const tilewise_model *model);

/* Return the number of kernels; write the name of one, 0 <= index < count, into `name` of `size` bytes. */
TILEWISE_API int tilewise_kernel_count(const tilewise_model *model);
TILEWISE_API int tilewise_kernel_name(const tilewise_model *model, int index, char *name, size_t size);

/* Return 1 if some kernel supports the problem, 0 if no kernel does, or an error. */
TILEWISE_API int tilewise_is_supported(const tilewise_model *model, const tilewise_problem *problem);

/* Write the name of the kernel to launch into `name` of `size` bytes. Return TILEWISE_OK or an error. */
TILEWISE_API int tilewise_select_kernel(const tilewise_model *model, const tilewise_problem *problem, char *name,
                                        size_t size);

/* Write the indices of the supported kernels, best first, into `kernels`, and their scores (higher is faster) into
 * `scores` unless it is NULL; at most `most` of them. Return how many were written, or an error. */
TILEWISE_API int tilewise_rank(const tilewise_model *model, const tilewise_problem *problem, int most, int32_t *kernels,
                               double *scores);

typedef struct {
    double tflops, latency_ms, bandwidth_gb_s; /* GB/s of the fewest bytes to move */
} tilewise_prediction;

/* Write the indices of the supported kernels, best first, into `kernels`, and their predicted figures into
 * `predictions`; at most `most` of them. Latency and bandwidth come from the model's own trees, or without them from
 * the TFLOPS. Return how many were written, or an error: TILEWISE_UNSUPPORTED for a model file of an earlier version,
 * which ranks only. */
TILEWISE_API int tilewise_predict(const tilewise_model *model, const tilewise_problem *problem, int most,
                                  int32_t *kernels, tilewise_prediction *predictions);

/* ---- the reference: computed on the host, slow and exact ----------------------------------------------------------
 */

/* Select a kernel, then compute the result with the reference in the model's type. GEMM: a = A, b = B, result = C.
 * Convolution: forward X, W, Y; backward data dY, W, dX; backward weight X, dY, dW; NHWGC, GKYXC, NHWGK (NDHWGC ...).
 * `time_ms` (may be NULL) is set to the time of the reference, or to -1 on failure. Return TILEWISE_OK or an error. */
TILEWISE_API int tilewise_run(const tilewise_model *model, const tilewise_problem *problem, const void *a,
                              const void *b, void *result, float *time_ms);

/* Compute a result without a model. `dtype`: "fp32", "bf16", "fp16", "fp8" (e4m3) or "fp8_fnuz" (that of gfx942), whose
 * results are fp16; `variant`: "universal", "forward", "bwd_data" or
 * "bwd_weight". Sums are double, rounded once, to the nearest, ties to even. Return TILEWISE_OK or an error. */
TILEWISE_API int tilewise_reference(const char *dtype, const char *variant, const tilewise_problem *problem,
                                    const void *a, const void *b, void *result);

/* ---- the functions of CK Tile's GEMM library ----------------------------------------------------------------------
 */

/* Load the model that TILEWISE_GEMM_MODEL names, for problems in the layout TILEWISE_GEMM_LAYOUT (default rcr); or load
 * the given file for the given layout. Return 0; or -1, and the previous model stays loaded. */
TILEWISE_API int dispatcher_init(void);
TILEWISE_API int dispatcher_init_from(const char *path, const char *layout);
TILEWISE_API int dispatcher_is_supported(int64_t M, int64_t N, int64_t K); /* 1; 0 also on errors */
TILEWISE_API int dispatcher_select_kernel(int64_t M, int64_t N, int64_t K, char *name, int size); /* 0, or -1 */
/* Return 0; -2 if no kernel supports the problem, -1 on other errors, both with *time_ms = -1. */
TILEWISE_API int dispatcher_run_gemm(const void *A, const void *B, void *C, int64_t M, int64_t N, int64_t K,
                                     float *time_ms);
TILEWISE_API int dispatcher_get_kernel_count(void); /* 0 before dispatcher_init */
TILEWISE_API const char *
dispatcher_export_registry_json(void); /* NULL before dispatcher_init; valid until cleanup or the next init */
TILEWISE_API void dispatcher_cleanup(void);

/* ---- the functions of CK Tile's convolution libraries -------------------------------------------------------------
 */

typedef struct {
    int N, G, C, K; /* C and K: channels of all groups */
    int input_d, input_h, input_w;
    int filter_z, filter_y, filter_x;
    int stride_d, stride_h, stride_w;
    int pad_d, pad_h, pad_w;
    int dilation_d, dilation_h, dilation_w;
    int direction; /* 0 forward, 1 backward data, 2 backward weight */
} ConvProblemC;

/* Load the models that TILEWISE_CONV_MODEL names, one per direction, separated by ':'; or load one file, which replaces
 * the model of its direction. Return 0; or -1, and the previous models stay loaded. */
TILEWISE_API int conv_dispatcher_init(void);
TILEWISE_API int conv_dispatcher_init_from(const char *path);
TILEWISE_API int conv_dispatcher_is_supported(const ConvProblemC *problem); /* 1; 0 also on errors */
TILEWISE_API int conv_dispatcher_select_kernel(const ConvProblemC *problem, char *name, int size); /* 0, or -1 */
/* Return milliseconds; -2 if no kernel supports the problem, -1 on other errors. `stream` must be NULL, because the
 * reference runs on the host. */
TILEWISE_API float conv_dispatcher_run(const void *a, const void *b, void *result, const ConvProblemC *problem,
                                       void *stream);
TILEWISE_API int conv_dispatcher_get_kernel_count(void); /* of all directions; 0 before conv_dispatcher_init */
TILEWISE_API int conv_dispatcher_cleanup(void);

#ifdef __cplusplus
}
#endif

#endif
