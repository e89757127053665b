/* What the C API's files share: a model, its file, problems, errors. */
#ifndef TILEWISE_MODEL_H
#define TILEWISE_MODEL_H

#include "include/tilewise.h"

#include "../core/ranker.h"

enum { TW_MOST_INPUTS = 19, TW_LAYOUTS = 4 };

struct tilewise_model {
    void *file;             /* what the texts below point into */
    uint32_t op;            /* TILEWISE_GEMM or TILEWISE_CONV */
    const char *variant, *dtype, *json;
    const char **names;     /* (n_kernels) */
    char target[128];
    int64_t layouts[TW_LAYOUTS]; /* the program's codes of TW_LAYOUT_NAMES */
    tw_ranker *ranker;
};

extern const char *const TW_LAYOUT_NAMES[TW_LAYOUTS];

/* Keep a message for tilewise_last_error; returns `code`. */
int tw_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Fill a zeroed model from a file. TILEWISE_OK, or an error; the model is to be closed either way. */
int tw_file_read(const char *path, tilewise_model *model);

/* Check a problem by the rules of tilewise.ops. TILEWISE_OK, or TILEWISE_BAD_ARGUMENT or _BAD_PROBLEM. */
int tw_problem_check(const tilewise_problem *problem);

/* The same, and that it is of the model's op; its columns go into `inputs` (TW_MOST_INPUTS). */
int tw_problem_inputs(const tilewise_model *model, const tilewise_problem *problem, int64_t *inputs);

/* The number of the best kernel, or an error: TILEWISE_NO_KERNEL where none supports the problem. */
int tw_best(const tilewise_model *model, const tilewise_problem *problem);

/* A variant's place in the order of a convolution's directions, a GEMM's is 0; -1 for none of the op's. */
enum { TW_FORWARD, TW_BWD_DATA, TW_BWD_WEIGHT, TW_DIRECTIONS };
int tw_direction(uint32_t op, const char *variant);

/* Output sizes of a sound convolution: depth, height, width. */
void tw_output_sizes(const tilewise_conv *conv, int64_t sizes[3]);

#endif
