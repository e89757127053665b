/* An open model: the struct behind tilewise_model, and the selection of one kernel.
 *
 * The files of the C API depend on each other in one direction:
 * error <- problem <- model_file <- model <- reference <- dispatcher. All of them use the ranking core (../core). */
#ifndef TILEWISE_MODEL_H
#define TILEWISE_MODEL_H

#include "problem.h"

#include "../core/ranker.h"

struct tilewise_model {
    void *file;  /* the model file's bytes; the texts below point into them */
    uint32_t op; /* TILEWISE_GEMM or TILEWISE_CONV */
    const char *variant, *dtype, *json;
    const char **names; /* (n_kernels) */
    char target[128];
    int64_t layouts[TW_LAYOUTS]; /* the bytecode's code of each layout of the op */
    int lacks_layout;            /* 1 for a convolution's file of an earlier version: its kernels take channels last */
    int predicts;                /* 0 for a file of an earlier version, which ranks only */
    int is_log1p;                /* 1 if scores are log(1 + TFLOPS), 0 if they are log(TFLOPS) */
    tw_ranker *ranker;
    tw_ranker *latency, *bandwidth; /* their scores are log(ms) and log(GB/s); NULL: derived from the TFLOPS */
};

/* Return the index of the best kernel, or an error; TILEWISE_NO_KERNEL if no kernel supports the problem. */
int tw_best_kernel(const tilewise_model *model, const tilewise_problem *problem);

#endif
