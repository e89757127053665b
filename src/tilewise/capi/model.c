#include "model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char message[512];

const char *tilewise_last_error(void)
{
    return message;
}

int tw_fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return code;
}

int tilewise_open(const char *path, tilewise_model **model)
{
    if (model)
        *model = NULL;
    if (!path || !model)
        return tw_fail(TILEWISE_BAD_ARGUMENT, "path or model is NULL");
    tilewise_model *m = calloc(1, sizeof *m);
    if (!m)
        return tw_fail(TILEWISE_NO_MEMORY, "out of memory");
    int failed = tw_file_read(path, m);
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
        free(m->names);
        free(m->file);
        free(m);
    }
}

static int not_ready(void)
{
    return tw_fail(TILEWISE_NOT_READY, "no model is loaded");
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

static int copy_name(const char *from, char *name, size_t size)
{
    if (!name || !size)
        return tw_fail(TILEWISE_BAD_ARGUMENT, "name is NULL, or has no room");
    name[0] = 0;
    size_t needed = strlen(from) + 1;
    if (size < needed)
        return tw_fail(TILEWISE_BUFFER_TOO_SMALL, "the name takes %zu bytes, the buffer has %zu", needed, size);
    memcpy(name, from, needed);
    return TILEWISE_OK;
}

int tilewise_kernel_name(const tilewise_model *m, int index, char *name, size_t size)
{
    if (!m)
        return not_ready();
    if (index < 0 || index >= m->ranker->n_kernels)
        return tw_fail(TILEWISE_BAD_ARGUMENT, "kernel %d of %d", index, m->ranker->n_kernels);
    return copy_name(m->names[index], name, size);
}

static int said(int32_t code)
{
    if (code == TW_NO_MEMORY)
        return tw_fail(TILEWISE_NO_MEMORY, "out of memory");
    if (code == TW_TOO_LARGE)
        return tw_fail(TILEWISE_UNSUPPORTED, "the problem's sizes take a formula of the model beyond int64");
    return code;
}

int tilewise_is_supported(const tilewise_model *m, const tilewise_problem *problem)
{
    int64_t inputs[TW_MOST_INPUTS];
    if (!m)
        return not_ready();
    int failed = tw_problem_inputs(m, problem, inputs);
    if (failed)
        return failed;
    int32_t found = tw_supported(m->ranker, inputs, NULL);
    return found < 0 ? said(found) : found > 0;
}

int tilewise_rank(const tilewise_model *m, const tilewise_problem *problem, int most, int32_t *kernels, double *scores)
{
    int64_t inputs[TW_MOST_INPUTS];
    double scale, one, *room = scores;
    if (!m)
        return not_ready();
    if (!kernels || most < 0)
        return tw_fail(TILEWISE_BAD_ARGUMENT, "kernels is NULL, or most is negative");
    int failed = tw_problem_inputs(m, problem, inputs);
    if (failed)
        return failed;
    most = most < m->ranker->n_kernels ? most : m->ranker->n_kernels;
    if (!room && !(room = most > 1 ? malloc(most * sizeof *room) : &one))
        return tw_fail(TILEWISE_NO_MEMORY, "out of memory");
    int32_t found = tw_rank(m->ranker, inputs, most, kernels, room, &scale);
    if (room != scores && room != &one)
        free(room);
    return said(found);
}

int tw_best(const tilewise_model *m, const tilewise_problem *problem)
{
    int32_t best;
    int found = tilewise_rank(m, problem, 1, &best, NULL);
    return found < 0 ? found
           : found   ? best
                     : tw_fail(TILEWISE_NO_KERNEL, "no kernel of %s supports the problem", m->target);
}

int tilewise_select_kernel(const tilewise_model *m, const tilewise_problem *problem, char *name, size_t size)
{
    int failed = m ? copy_name("", name, size) : not_ready();
    if (failed)
        return failed;
    int best = tw_best(m, problem);
    return best < 0 ? best : copy_name(m->names[best], name, size);
}
