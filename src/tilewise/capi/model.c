/* Models of the C API: opening, names and selection. model.h and tilewise.h have the contracts. */
#include "model.h"
#include "error.h"
#include "model_file.h"

#include "../core/rank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int tilewise_open(const char *path, tilewise_model **model)
{
    if (model)
        *model = NULL;
    if (!path || !model)
        return tw_set_error(TILEWISE_BAD_ARGUMENT, "path or model is NULL");
    tilewise_model *m = calloc(1, sizeof *m);
    if (!m)
        return tw_set_error(TILEWISE_NO_MEMORY, "out of memory");
    int failed = tw_model_file_read(path, m);
    if (failed) {
        tilewise_close(m);
        return failed;
    }
    *model = m;
    return TILEWISE_OK;
}

void tilewise_close(tilewise_model *m)
{
    if (m) {
        tw_ranker_free(m->ranker);
        tw_ranker_free(m->latency);
        tw_ranker_free(m->bandwidth);
        free((void *)m->names);
        free(m->file);
        free(m);
    }
}

/* Set the error of a missing model and return its code. */
static int not_ready(void)
{
    return tw_set_error(TILEWISE_NOT_READY, "no model is loaded; open one first");
}

const char *tilewise_target(const tilewise_model *m)
{
    return m ? m->target : NULL;
}

const char *tilewise_export_json(const tilewise_model *m)
{
    return m ? m->json : NULL;
}

int tilewise_kernel_count(const tilewise_model *m)
{
    return m ? m->ranker->n_kernels : not_ready();
}

/* Copy a name with its \0 into the caller's buffer. Return TILEWISE_OK or an error. */
static int copy_name(const char *from, char *name, size_t size)
{
    if (!name || !size)
        return tw_set_error(TILEWISE_BAD_ARGUMENT, "name must point to a buffer of at least one byte");
    name[0] = 0;
    size_t needed = strlen(from) + 1;
    if (size < needed)
        return tw_set_error(TILEWISE_BUFFER_TOO_SMALL, "the name needs a buffer of %zu bytes, got %zu", needed, size);
    memcpy(name, from, needed);
    return TILEWISE_OK;
}

int tilewise_kernel_name(const tilewise_model *m, int index, char *name, size_t size)
{
    if (!m)
        return not_ready();
    if (index < 0 || index >= m->ranker->n_kernels)
        return tw_set_error(TILEWISE_BAD_ARGUMENT, "index must be between 0 and the kernel count, got %d of %d", index,
                            m->ranker->n_kernels);
    return copy_name(m->names[index], name, size);
}

/* Return the public code of a result of the core, and set the message if it is an error. */
static int status_of(int32_t code)
{
    if (code == TW_NO_MEMORY)
        return tw_set_error(TILEWISE_NO_MEMORY, "out of memory");
    if (code == TW_TOO_LARGE)
        return tw_set_error(TILEWISE_UNSUPPORTED,
                            "the problem is too large: a formula of the model does not fit int64");
    return code;
}

/* Check a problem and write its columns into `inputs` (TW_MAX_INPUTS). Return TILEWISE_OK, an error, or
 * TILEWISE_NO_KERNEL for a layout that no kernel of the model takes. */
static int read_problem(const tilewise_model *m, const tilewise_problem *problem, int64_t *inputs)
{
    int failed = tw_problem_check(problem);
    if (failed)
        return failed;
    if (problem->op != m->op)
        return tw_set_error(TILEWISE_BAD_PROBLEM, "the problem is of another op than the model, %s", m->target);
    if (m->lacks_layout && tw_conv_layout(&problem->of.conv) != 0)
        return TILEWISE_NO_KERNEL;
    tw_problem_columns(problem, m->layouts, inputs);
    return TILEWISE_OK;
}

int tilewise_is_supported(const tilewise_model *m, const tilewise_problem *problem)
{
    int64_t inputs[TW_MAX_INPUTS];
    if (!m)
        return not_ready();
    int failed = read_problem(m, problem, inputs);
    if (failed)
        return failed == TILEWISE_NO_KERNEL ? 0 : failed;
    int32_t found = tw_supported(m->ranker, inputs, NULL);
    return found < 0 ? status_of(found) : found > 0;
}

/* Rank as tilewise_rank does, and write the score of the scale model into `*scale`. */
static int rank_with_scale(const tilewise_model *m, const tilewise_problem *problem, int most, int32_t *kernels,
                           double *scores, double *scale)
{
    int64_t inputs[TW_MAX_INPUTS];
    double one, *buffer = scores;
    if (!m)
        return not_ready();
    if (!kernels || most < 0)
        return tw_set_error(TILEWISE_BAD_ARGUMENT, "kernels is NULL, or most is negative");
    int failed = read_problem(m, problem, inputs);
    if (failed)
        return failed == TILEWISE_NO_KERNEL ? 0 : failed;
    most = most < m->ranker->n_kernels ? most : m->ranker->n_kernels;
    if (!buffer)
        buffer = most > 1 ? malloc(most * sizeof *buffer) : &one;
    if (!buffer)
        return tw_set_error(TILEWISE_NO_MEMORY, "out of memory");
    int32_t found = tw_rank(m->ranker, inputs, most, kernels, buffer, scale);
    if (buffer != scores && buffer != &one)
        free(buffer);
    return status_of(found);
}

int tilewise_rank(const tilewise_model *m, const tilewise_problem *problem, int most, int32_t *kernels, double *scores)
{
    double scale;
    return rank_with_scale(m, problem, most, kernels, scores, &scale);
}

/* Return the scores of all kernels by additional trees, which the caller frees; NULL with `*failed` 0 where the model
 * has no such trees, or with an error. */
static double *extra_scores(const tilewise_model *m, tw_ranker *extra, const tilewise_problem *problem, int *failed)
{
    int64_t inputs[TW_MAX_INPUTS];
    if (!extra || *failed)
        return NULL;
    double *scores = malloc(extra->n_kernels * sizeof *scores);
    *failed = scores ? read_problem(m, problem, inputs) : tw_set_error(TILEWISE_NO_MEMORY, "out of memory");
    if (!*failed)
        *failed = status_of(tw_score(extra, inputs, scores));
    if (*failed) {
        free(scores);
        return NULL;
    }
    return scores;
}

/* Complete predictions of TFLOPS by latency and bandwidth. Return TILEWISE_OK or an error. */
static int complete(const tilewise_model *m, const tilewise_problem *problem, int count, const int32_t *kernels,
                    tilewise_prediction *predictions)
{
    double flops, bytes;
    int failed = 0;
    if (tw_problem_work(problem, m->dtype, &flops, &bytes))
        return tw_set_error(TILEWISE_UNSUPPORTED, "the type %s has no known size", m->dtype);
    double *log_ms = extra_scores(m, m->latency, problem, &failed);
    double *log_gb_s = extra_scores(m, m->bandwidth, problem, &failed);
    for (int i = 0; i < count && !failed; i++) {
        tilewise_prediction *p = &predictions[i];
        p->latency_ms = log_ms ? exp(log_ms[kernels[i]]) : flops / (p->tflops * 1e9);
        p->bandwidth_gb_s = log_gb_s ? exp(log_gb_s[kernels[i]]) : bytes / (p->latency_ms * 1e6);
    }
    free(log_ms);
    free(log_gb_s);
    return failed;
}

int tilewise_predict(const tilewise_model *m, const tilewise_problem *problem, int most, int32_t *kernels,
                     tilewise_prediction *predictions)
{
    static const double MIN_TFLOPS = 1e-9; /* that of tilewise.model */
    double scale = 0.0;
    if (!m)
        return not_ready();
    if (!predictions || most < 0)
        return tw_set_error(TILEWISE_BAD_ARGUMENT, "predictions is NULL, or most is negative");
    if (!m->predicts)
        return tw_set_error(TILEWISE_UNSUPPORTED, "the model file is of an earlier version; export the model again");
    most = most < m->ranker->n_kernels ? most : m->ranker->n_kernels;
    double *scores = calloc((size_t)most + 1, sizeof *scores);
    if (!scores)
        return tw_set_error(TILEWISE_NO_MEMORY, "out of memory");
    int found = rank_with_scale(m, problem, most, kernels, scores, &scale);
    for (int i = 0; i < found; i++) {
        double tflops = m->is_log1p ? expm1(scores[i] + scale) : exp(scores[i] + scale);
        predictions[i] = (tilewise_prediction){.tflops = tflops > MIN_TFLOPS ? tflops : MIN_TFLOPS};
    }
    free(scores);
    int failed = found > 0 ? complete(m, problem, found, kernels, predictions) : 0;
    return failed ? failed : found;
}

int tw_best_kernel(const tilewise_model *m, const tilewise_problem *problem)
{
    int32_t best = 0;
    int found = tilewise_rank(m, problem, 1, &best, NULL);
    return found < 0 ? found
           : found   ? best
                     : tw_set_error(TILEWISE_NO_KERNEL, "no kernel of %s supports the problem", m->target);
}

int tilewise_select_kernel(const tilewise_model *m, const tilewise_problem *problem, char *name, size_t size)
{
    if (!m)
        return not_ready();
    int failed = copy_name("", name, size);
    if (failed)
        return failed;
    int best = tw_best_kernel(m, problem);
    return best < 0 ? best : copy_name(m->names[best], name, size);
}
