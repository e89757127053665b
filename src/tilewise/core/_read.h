/* Conversion of the arrays that model/_ranker.py passes into the parts of a ranker.
 *
 * Arrays are read by the buffer protocol and copied. Functions that fail return NULL or -1 with an exception set. */
#ifndef TILEWISE_READ_H
#define TILEWISE_READ_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "ranker.h"

/* Set a ValueError about a part of the ranker, unless an exception is set already. */
void tw_report_mismatch(const char *part);

/* Return new bytecode, which the caller frees, from (n_inputs, n_slots, constants, instructions, index). */
tw_bytecode *tw_read_bytecode(PyObject *parts, tw_math math);

/* Return a new forest, which the caller frees, from (n_features, roots, feature, threshold, children, missing,
 * default_left, value). */
tw_forest *tw_read_forest(PyObject *parts);

/* Return a new cost model, which the caller frees, from (n_costs, n_drivers, limits, binaries, factors, centre, scale,
 * weights). */
tw_cost_model *tw_read_cost_model(PyObject *parts, int n_kernels);

/* Fill `outputs`, whose array the caller frees. Return 0 or -1. */
int tw_read_outputs(PyObject *object, tw_outputs *outputs);

/* Fill the partitions of a ranker whose n_kernels is set; the ranker owns them, also after an error. Return 0 or -1. */
int tw_read_classes(PyObject *list, tw_ranker *ranker);

#endif
