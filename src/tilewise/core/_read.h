/* Reads what tilewise/model/ranker.py hands over. Each returns NULL or -1 with an exception set. */
#ifndef TILEWISE_READ_H
#define TILEWISE_READ_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "ranker.h"

/* Say that a part cannot be taken, unless something was said before. */
void tw_misfit(const char *what);

tw_program *tw_read_program(PyObject *parts, tw_math math);
tw_forest *tw_read_forest(PyObject *parts);
tw_estimate *tw_read_estimate(PyObject *parts, int n_kernels);
int tw_read_outputs(PyObject *object, tw_outputs *outputs);
int tw_read_classes(PyObject *list, tw_ranker *ranker); /* its n_kernels are known */

#endif
