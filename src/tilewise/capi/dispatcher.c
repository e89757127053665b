/* The functions of CK Tile's dispatcher libraries, on models that the whole process shares. */
#include "error.h"
#include "model.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER; /* init and cleanup write, all others read */
static tilewise_model *gemm, *conv[TW_DIRECTIONS];
static char gemm_layout[sizeof((tilewise_gemm *)0)->layout];

/* Return CK Tile's code for a status: the status if CK Tile has it, -1 for any other error. */
static int code_of(int status)
{
    return status >= 0 || status == TILEWISE_NO_KERNEL ? status : -1;
}

/* ---- GEMM ---------------------------------------------------------------------------------------------------------
 */

/* Return a problem in the layout of dispatcher_init. The caller holds the lock. */
static tilewise_problem gemm_problem(int64_t M, int64_t N, int64_t K)
{
    tilewise_problem p = {.size = sizeof p, .op = TILEWISE_GEMM};
    p.of.gemm.m = M, p.of.gemm.n = N, p.of.gemm.k = K;
    memcpy(p.of.gemm.layout, gemm_layout, sizeof gemm_layout);
    return p;
}

int dispatcher_init(void)
{
    const char *path = getenv("TILEWISE_GEMM_MODEL"), *layout = getenv("TILEWISE_GEMM_LAYOUT");
    if (!path || !*path)
        return code_of(
            tw_set_error(TILEWISE_NOT_READY, "TILEWISE_GEMM_MODEL is not set; set it to the path of a model file"));
    return dispatcher_init_from(path, layout && *layout ? layout : "rcr");
}

int dispatcher_init_from(const char *path, const char *layout)
{
    tilewise_model *fresh = NULL;
    int known = 0;
    char fresh_layout[sizeof gemm_layout] = {0};
    for (int i = 0; layout && i < TW_LAYOUTS; i++)
        known |= !strcmp(layout, TW_LAYOUT_NAMES[i]);
    if (!known)
        return code_of(tw_set_error(TILEWISE_BAD_ARGUMENT, "layout must be rcr, rrr, crr or ccr"));
    memcpy(fresh_layout, layout, strlen(layout) + 1);
    if (tilewise_open(path, &fresh))
        return -1;
    if (fresh->op != TILEWISE_GEMM) {
        tw_set_error(TILEWISE_BAD_FILE, "%s: expected a model of a GEMM, got %s", path, fresh->target);
        tilewise_close(fresh);
        return -1;
    }
    pthread_rwlock_wrlock(&lock);
    tilewise_model *old = gemm;
    gemm = fresh;
    memcpy(gemm_layout, fresh_layout, sizeof gemm_layout);
    pthread_rwlock_unlock(&lock);
    tilewise_close(old);
    return 0;
}

int dispatcher_is_supported(int64_t M, int64_t N, int64_t K)
{
    pthread_rwlock_rdlock(&lock);
    tilewise_problem p = gemm_problem(M, N, K);
    int answer = tilewise_is_supported(gemm, &p);
    pthread_rwlock_unlock(&lock);
    return answer == 1;
}

int dispatcher_select_kernel(int64_t M, int64_t N, int64_t K, char *name, int size)
{
    pthread_rwlock_rdlock(&lock);
    tilewise_problem p = gemm_problem(M, N, K);
    int failed = tilewise_select_kernel(gemm, &p, name, size > 0 ? (size_t)size : 0);
    pthread_rwlock_unlock(&lock);
    return failed ? -1 : 0;
}

int dispatcher_run_gemm(const void *A, const void *B, void *C, int64_t M, int64_t N, int64_t K, float *time_ms)
{
    pthread_rwlock_rdlock(&lock);
    tilewise_problem p = gemm_problem(M, N, K);
    int failed = tilewise_run(gemm, &p, A, B, C, time_ms);
    pthread_rwlock_unlock(&lock);
    return code_of(failed);
}

int dispatcher_get_kernel_count(void)
{
    pthread_rwlock_rdlock(&lock);
    int count = gemm ? tilewise_kernel_count(gemm) : 0;
    pthread_rwlock_unlock(&lock);
    return count;
}

const char *dispatcher_export_registry_json(void)
{
    pthread_rwlock_rdlock(&lock);
    const char *json = tilewise_export_json(gemm);
    pthread_rwlock_unlock(&lock);
    return json;
}

void dispatcher_cleanup(void)
{
    pthread_rwlock_wrlock(&lock);
    tilewise_model *old = gemm;
    gemm = NULL;
    pthread_rwlock_unlock(&lock);
    tilewise_close(old);
}

/* ---- convolution --------------------------------------------------------------------------------------------------
 */

/* Open every file of a list separated by ':' and put each model at its direction in `fresh`, also when a later file
 * fails; the caller closes them. Return 0 or an error. */
static int open_all(const char *paths, tilewise_model *fresh[TW_DIRECTIONS])
{
    char *list = strdup(paths), *rest = NULL;
    if (!list)
        return tw_set_error(TILEWISE_NO_MEMORY, "out of memory");
    int failed = *list ? 0 : tw_set_error(TILEWISE_BAD_ARGUMENT, "the list of model files is empty");
    for (char *path = strtok_r(list, ":", &rest); path && !failed; path = strtok_r(NULL, ":", &rest)) {
        tilewise_model *m = NULL;
        failed = tilewise_open(path, &m);
        if (failed)
            break;
        int direction = m->op == TILEWISE_CONV ? tw_direction(m->op, m->variant) : -1;
        if (direction >= 0 && !fresh[direction]) {
            fresh[direction] = m;
            continue;
        }
        failed = tw_set_error(TILEWISE_BAD_FILE,
                              direction < 0 ? "%s: expected a model of a convolution, got %s"
                                            : "%s: %s is the second model of its direction; list one per direction",
                              path, m->target);
        tilewise_close(m);
    }
    free(list);
    return failed;
}

/* Make the models in `fresh` current and close the previous ones. `keep`: directions without a new model keep
 * theirs; otherwise they become empty. */
static void replace_conv(tilewise_model *fresh[TW_DIRECTIONS], int keep)
{
    pthread_rwlock_wrlock(&lock);
    for (int i = 0; i < TW_DIRECTIONS; i++)
        if (fresh[i] || !keep) {
            tilewise_model *old = conv[i];
            conv[i] = fresh[i], fresh[i] = old;
        }
    pthread_rwlock_unlock(&lock);
    for (int i = 0; i < TW_DIRECTIONS; i++)
        tilewise_close(fresh[i]);
}

int conv_dispatcher_init(void)
{
    tilewise_model *fresh[TW_DIRECTIONS] = {NULL};
    const char *paths = getenv("TILEWISE_CONV_MODEL");
    if (!paths || !*paths)
        return code_of(
            tw_set_error(TILEWISE_NOT_READY,
                         "TILEWISE_CONV_MODEL is not set; set it to the paths of model files, separated by ':'"));
    if (open_all(paths, fresh)) {
        for (int i = 0; i < TW_DIRECTIONS; i++)
            tilewise_close(fresh[i]);
        return -1;
    }
    replace_conv(fresh, 0);
    return 0;
}

int conv_dispatcher_init_from(const char *path)
{
    tilewise_model *fresh[TW_DIRECTIONS] = {NULL}, *m = NULL;
    if (tilewise_open(path, &m))
        return -1;
    if (m->op != TILEWISE_CONV) {
        tw_set_error(TILEWISE_BAD_FILE, "%s: expected a model of a convolution, got %s", path, m->target);
        tilewise_close(m);
        return -1;
    }
    fresh[tw_direction(m->op, m->variant)] = m;
    replace_conv(fresh, 1);
    return 0;
}

/* Convert a problem and find the model of its direction. The caller holds the lock. Return TILEWISE_OK or an error. */
static int translate(const ConvProblemC *c, tilewise_problem *p, tilewise_model **m)
{
    if (!c)
        return tw_set_error(TILEWISE_BAD_ARGUMENT, "problem is NULL");
    if (c->direction < 0 || c->direction >= TW_DIRECTIONS)
        return tw_set_error(TILEWISE_BAD_PROBLEM, "direction must be 0, 1 or 2, got %d", c->direction);
    *m = conv[c->direction];
    if (!*m)
        return tw_set_error(TILEWISE_NOT_READY, "no model is loaded for direction %d", c->direction);
    *p = (tilewise_problem){.size = sizeof *p, .op = TILEWISE_CONV};
    p->of.conv = (tilewise_conv){
        .n = c->N,
        .c = c->C,
        .k = c->K,
        .g = c->G,
        .di = c->input_d,
        .hi = c->input_h,
        .wi = c->input_w,
        .z = c->filter_z,
        .y = c->filter_y,
        .x = c->filter_x,
        .stride_d = c->stride_d,
        .stride_h = c->stride_h,
        .stride_w = c->stride_w,
        .pad_d = c->pad_d,
        .pad_h = c->pad_h,
        .pad_w = c->pad_w,
        .dilation_d = c->dilation_d,
        .dilation_h = c->dilation_h,
        .dilation_w = c->dilation_w,
    };
    return TILEWISE_OK;
}

int conv_dispatcher_is_supported(const ConvProblemC *problem)
{
    tilewise_problem p;
    tilewise_model *m = NULL;
    pthread_rwlock_rdlock(&lock);
    int answer = translate(problem, &p, &m);
    if (!answer)
        answer = tilewise_is_supported(m, &p);
    pthread_rwlock_unlock(&lock);
    return answer == 1;
}

int conv_dispatcher_select_kernel(const ConvProblemC *problem, char *name, int size)
{
    tilewise_problem p;
    tilewise_model *m = NULL;
    if (name && size > 0)
        name[0] = 0;
    pthread_rwlock_rdlock(&lock);
    int failed = translate(problem, &p, &m);
    if (!failed)
        failed = tilewise_select_kernel(m, &p, name, size > 0 ? (size_t)size : 0);
    pthread_rwlock_unlock(&lock);
    return failed ? -1 : 0;
}

float conv_dispatcher_run(const void *a, const void *b, void *result, const ConvProblemC *problem, void *stream)
{
    tilewise_problem p;
    tilewise_model *m = NULL;
    float time_ms = -1.0F;
    if (stream) {
        tw_set_error(TILEWISE_BAD_ARGUMENT, "stream must be NULL, because the reference computes on the host");
        return -1.0F;
    }
    pthread_rwlock_rdlock(&lock);
    int failed = translate(problem, &p, &m);
    if (!failed)
        failed = tilewise_run(m, &p, a, b, result, &time_ms);
    pthread_rwlock_unlock(&lock);
    return failed ? (float)code_of(failed) : time_ms;
}

int conv_dispatcher_get_kernel_count(void)
{
    int count = 0;
    pthread_rwlock_rdlock(&lock);
    for (int i = 0; i < TW_DIRECTIONS; i++)
        count += conv[i] ? tilewise_kernel_count(conv[i]) : 0;
    pthread_rwlock_unlock(&lock);
    return count;
}

int conv_dispatcher_cleanup(void)
{
    tilewise_model *empty[TW_DIRECTIONS] = {NULL};
    replace_conv(empty, 0);
    return 0;
}
