/* A library with CK Tile's C API that holds one kernel, right or misbehaving: what a test is about are macros.
 * Computing is tilewise's reference, on the host. */
#include "tilewise.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef NAME
#define NAME "gemm_universal_fp16_rcr_compv3_cshuffle_intrawave_False_False_False_False_16x16x16_1x1x1_16x16x16"
#endif
#ifndef DTYPE
#define DTYPE "fp16"
#endif
#ifndef TILE
#define TILE 16 /* must divide M, N and K */
#endif
#ifndef DIRECTION
#define DIRECTION 0
#endif
#ifndef COUNT
#define COUNT 1
#endif
#ifndef MS
#define MS 1 /* what a run says that it took */
#endif
#ifndef HURT
#define HURT 0 /* the M or N at which a run does MISBEHAVE; 0: at each */
#endif
#ifndef MISBEHAVE
#define MISBEHAVE (void)0
#endif
#ifndef INIT
#define INIT return 0
#endif
#ifndef FITS
#define FITS p->C % TILE == 0 /* whether the library supports a convolution */
#endif
#ifndef CHEAT
#define CHEAT 0
#endif

#define API __attribute__((visibility("default")))

static int live, busy; /* between init and cleanup; within a call */

/* A line a call in the file that CK_STUB_LOG names: what, which kernel, which process. */
static void note(const char *what)
{
    FILE *log = getenv("CK_STUB_LOG") ? fopen(getenv("CK_STUB_LOG"), "a") : NULL;
    if (log) {
        fprintf(log, "%s %s %d\n", what, NAME, (int)getpid());
        fclose(log);
    }
}

static int begin(void)
{
    note("init");
    live++;
    INIT;
}

static int end(void)
{
    note("cleanup");
    live--;
    return 0;
}

/* As CK Tile copies a name: cut where the buffer is short. */
static int copy(char *name, int size)
{
    snprintf(name, (size_t)size, "%s", NAME);
    return 0;
}

static float run(const tilewise_problem *p, const char *variant, const void *a, const void *b, void *c, int size)
{
    if (!HURT || size == HURT)
        MISBEHAVE;
    if (!live || __atomic_add_fetch(&busy, 1, __ATOMIC_SEQ_CST) > 1)
        return -9; /* not initialised, or called by two threads at once */
    int failed = tilewise_reference(DTYPE, variant, p, a, b, c);
    if (CHEAT)
        ((uint16_t *)c)[0] ^= 0x4000;
    __atomic_sub_fetch(&busy, 1, __ATOMIC_SEQ_CST);
    return failed ? -1 : (float)(MS);
}

#ifndef CONV
API int dispatcher_init(void) { return begin(); }
API int dispatcher_is_supported(int64_t M, int64_t N, int64_t K) { return !(M % TILE || N % TILE || K % TILE); }
API int dispatcher_get_kernel_count(void) { return COUNT; }
API const char *dispatcher_export_registry_json(void) { return "{\"kernels\": [{\"name\": \"" NAME "\"}]}"; }
API void dispatcher_cleanup(void) { end(); }

API int dispatcher_select_kernel(int64_t M, int64_t N, int64_t K, char *name, int size)
{
    return dispatcher_is_supported(M, N, K) ? copy(name, size) : -1;
}

#ifndef WITHOUT_RUN
API int dispatcher_run_gemm(const void *A, const void *B, void *C, int64_t M, int64_t N, int64_t K, float *time_ms)
{
    tilewise_problem p = {.size = sizeof p, .op = TILEWISE_GEMM, .of.gemm = {M, N, K, "rcr"}};
    *time_ms = -1;
    if (!dispatcher_is_supported(M, N, K))
        return -2;
    float ms = run(&p, "universal", A, B, C, (int)M);
    *time_ms = ms;
    return ms < 0 ? (int)ms : 0;
}
#endif

#else
API int conv_dispatcher_init(void) { return begin(); }
API int conv_dispatcher_is_supported(const ConvProblemC *p) { return p->direction == DIRECTION && (FITS); }
API int conv_dispatcher_get_kernel_count(void) { return COUNT; }
API int conv_dispatcher_cleanup(void) { return end(); }

API int conv_dispatcher_select_kernel(const ConvProblemC *p, char *name, int size)
{
    return conv_dispatcher_is_supported(p) ? copy(name, size) : -1;
}

API float conv_dispatcher_run(const void *a, const void *b, void *c, const ConvProblemC *q, void *stream)
{
    static const char *const variants[] = {"forward", "bwd_data", "bwd_weight"};
    if (!conv_dispatcher_is_supported(q))
        return -2;
    if (stream)
        return -3;
    tilewise_problem p = {.size = sizeof p, .op = TILEWISE_CONV, .of.conv = {
        q->N, q->C, q->K, q->G, q->input_h, q->input_w, q->filter_y, q->filter_x, q->stride_h, q->stride_w, q->pad_h,
        q->pad_w, q->dilation_h, q->dilation_w, q->input_d, q->filter_z, q->stride_d, q->pad_d, q->dilation_d}};
    return run(&p, variants[q->direction], a, b, c, q->N);
}
#endif
