/* The Python module of the ranking core. Calls run without the GIL. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>

#include <string.h>

#include "_key.h"
#include "_read.h"
#include "rank.h"
#include "text.h"

/* ---- NumPy's logarithms, for features that equal NumPy's bit for bit ----------------------------------------------
 */

typedef struct {
    PyUFuncGenericFunction loop;
    void *data;
} numpy_loop;

/* Call NumPy's inner loop of a function over `n` doubles. */
static void call_loop(void *context, const double *x, double *y, size_t n)
{
    const numpy_loop *numpy = context;
    char *args[2] = {(char *)x, (char *)y};
    npy_intp count = (npy_intp)n, steps[2] = {sizeof *x, sizeof *y};
    numpy->loop(args, &count, steps, numpy->data);
}

/* Find the inner loop of a NumPy function for doubles. Return 0, or -1 with an exception set. */
static int find_loop(PyObject *object, numpy_loop *found)
{
    if (PyObject_TypeCheck(object, &PyUFunc_Type)) {
        PyUFuncObject *ufunc = (PyUFuncObject *)object;
        for (int i = 0; ufunc->nin == 1 && ufunc->nout == 1 && i < ufunc->ntypes; i++)
            if (ufunc->types[2 * i] == NPY_DOUBLE && ufunc->types[2 * i + 1] == NPY_DOUBLE && ufunc->functions[i]) {
                *found = (numpy_loop){ufunc->functions[i], ufunc->data ? ufunc->data[i] : NULL};
                return 0;
            }
    }
    PyErr_SetString(PyExc_TypeError, "expected a NumPy ufunc from one double to one double");
    return -1;
}

/* ---- Ranker -------------------------------------------------------------------------------------------------------
 */

typedef struct {
    PyObject_HEAD tw_ranker *ranker;
    numpy_loop log, log2;
    PyObject *codes; /* NULL, or a tuple with an item per input: the dict of a text column's numbers, or None */
} Ranker;

/* Free the ranker and its parts. */
static void ranker_dealloc(Ranker *self)
{
    PyTypeObject *type = Py_TYPE(self);
    tw_ranker_free(self->ranker);
    Py_XDECREF(self->codes);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* Return a new Ranker from the arrays of model/_ranker.py, or NULL with an exception set. */
static PyObject *ranker_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"n_kernels", "bytecode", "classes", "rules",  "features", "problem",
                            "costs",     "drivers",  "single",  "scores", "scale",    "cost_model",
                            "shortlist", "log",      "log2",    "codes",  NULL};
    PyObject *bytecode, *classes, *rules, *features, *problem, *costs, *drivers, *single, *scores, *scale, *cost_model;
    PyObject *log, *log2, *codes = Py_None;
    int n_kernels, shortlist;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iOOOOOOOOOOOiOO|O", names, &n_kernels, &bytecode, &classes, &rules,
                                     &features, &problem, &costs, &drivers, &single, &scores, &scale, &cost_model,
                                     &shortlist, &log, &log2, &codes))
        return NULL;
    Ranker *self = (Ranker *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    tw_ranker *r = self->ranker = calloc(1, sizeof *r);
    tw_outputs singles = {0};
    const tw_math math = {{call_loop, &self->log}, {call_loop, &self->log2}};
    if (!r || n_kernels < 1 || find_loop(log, &self->log) || find_loop(log2, &self->log2))
        goto fail;
    r->n_kernels = n_kernels, r->words = (n_kernels + 63) / 64, r->shortlist = shortlist;
    if (!(r->bytecode = tw_read_bytecode(bytecode, math)) || tw_read_classes(classes, r) ||
        tw_read_outputs(rules, &r->rules) || tw_read_outputs(features, &r->features) ||
        tw_read_outputs(problem, &r->problem) || tw_read_outputs(costs, &r->costs) ||
        tw_read_outputs(drivers, &r->drivers) || tw_read_outputs(single, &singles) ||
        !(r->scores = tw_read_forest(scores)) || (scale != Py_None && !(r->scale = tw_read_forest(scale))) ||
        (cost_model != Py_None && !(r->cost_model = tw_read_cost_model(cost_model, n_kernels))))
        goto fail;
    if (codes != Py_None) {
        if (!PyTuple_Check(codes) || PyTuple_GET_SIZE(codes) != r->bytecode->n_inputs)
            goto fail;
        self->codes = Py_NewRef(codes);
    }
    if (r->cost_model && singles.count == 2)
        r->binary_class = singles.at[0], r->log_work = singles.at[1];
    if ((r->cost_model && singles.count != 2) || tw_ranker_check(r))
        goto fail;
    free(singles.at);
    return (PyObject *)self;
fail:
    free(singles.at);
    tw_report_mismatch("ranker");
    Py_DECREF(self);
    return NULL;
}

enum { MAX_INPUTS = 64 };

/* Copy the problem's columns into `inputs`, the number of a text for a text: -1 where no formula names it. Return 0, or
 * -1 with an exception set. */
static int read_inputs(Ranker *self, PyObject *tuple, int64_t *inputs)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != self->ranker->bytecode->n_inputs ||
        PyTuple_GET_SIZE(tuple) > MAX_INPUTS) {
        PyErr_SetString(PyExc_ValueError, "a problem must be a tuple with one integer per input of the bytecode");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *value = PyTuple_GET_ITEM(tuple, i);
        PyObject *known = self->codes && PyUnicode_Check(value) ? PyTuple_GET_ITEM(self->codes, i) : NULL;
        if (known && PyDict_Check(known)) {
            value = PyDict_GetItemWithError(known, value);
            if (!value && PyErr_Occurred())
                return -1;
        }
        inputs[i] = value ? PyLong_AsLongLong(value) : -1;
        if (inputs[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* Set the exception for an error of rank.h and return NULL. */
static PyObject *failure(int32_t code)
{
    if (code == TW_NO_MEMORY)
        return PyErr_NoMemory();
    PyErr_SetString(PyExc_OverflowError, "an integer in a rule or feature does not fit int64; use the NumPy path");
    return NULL;
}

PyDoc_STRVAR(rank_doc,
             "rank(problem, most) -> (kernels, scores, scale): return the best supported kernels, best first.\n\n"
             "Raises:\n    OverflowError: an integer in a rule or feature does not fit int64.");

/* Implement Ranker.rank; see rank_doc. */
static PyObject *ranker_rank(Ranker *self, PyObject *args)
{
    int64_t inputs[MAX_INPUTS];
    PyObject *problem;
    int most;
    if (!PyArg_ParseTuple(args, "Oi", &problem, &most) || read_inputs(self, problem, inputs))
        return NULL;
    most = most < self->ranker->n_kernels ? most : self->ranker->n_kernels;
    int32_t few_kernels[8], *kernels = few_kernels, found;
    double few_scores[8], *scores = few_scores, scale = 0.0;
    if (most > 8) {
        kernels = PyMem_Malloc(most * sizeof *kernels);
        scores = PyMem_Malloc(most * sizeof *scores);
    }
    PyObject *result = NULL;
    if (kernels && scores) {
        Py_BEGIN_ALLOW_THREADS;
        found = tw_rank(self->ranker, inputs, most, kernels, scores, &scale);
        Py_END_ALLOW_THREADS;
        PyObject *numbers = found < 0 ? failure(found) : PyTuple_New(found);
        PyObject *values = numbers ? PyTuple_New(found) : NULL;
        for (int32_t i = 0; values && i < found; i++) {
            PyTuple_SET_ITEM(numbers, i, PyLong_FromLong(kernels[i]));
            PyTuple_SET_ITEM(values, i, PyFloat_FromDouble(scores[i]));
        }
        result = values ? Py_BuildValue("NNd", numbers, values, scale) : NULL;
        if (!values)
            Py_XDECREF(numbers);
    } else
        PyErr_NoMemory();
    if (most > 8) {
        PyMem_Free(kernels);
        PyMem_Free(scores);
    }
    return result;
}

/* Fill the caller's array without holding the GIL: the common part of the three methods below. Return the result of
 * `compute` as an int, or NULL with an exception set. */
static PyObject *fill(Ranker *self, PyObject *args, Py_ssize_t bytes,
                      int32_t (*compute)(tw_ranker *, const int64_t *, void *))
{
    int64_t inputs[MAX_INPUTS];
    PyObject *problem;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "Ow*", &problem, &out))
        return NULL;
    int32_t code = 0;
    int failed = read_inputs(self, problem, inputs);
    if (!failed && out.len != bytes) {
        PyErr_SetString(PyExc_ValueError, "the array to fill has the wrong size");
        failed = 1;
    }
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS;
        code = compute(self->ranker, inputs, out.buf);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&out);
    if (failed)
        return NULL;
    return code < 0 ? failure(code) : PyLong_FromLong(code);
}

/* Adapt tw_score to `fill`. */
static int32_t fill_scores(tw_ranker *r, const int64_t *inputs, void *out)
{
    return tw_score(r, inputs, out);
}

/* Adapt tw_supported to `fill`. */
static int32_t fill_supported(tw_ranker *r, const int64_t *inputs, void *out)
{
    return tw_supported(r, inputs, out);
}

/* Adapt tw_features to `fill`. */
static int32_t fill_features(tw_ranker *r, const int64_t *inputs, void *out)
{
    return tw_features(r, inputs, out);
}

PyDoc_STRVAR(score_doc, "score(problem, out): write the scores of all kernels into float64 (kernels,).");

/* Implement Ranker.score; see score_doc. */
static PyObject *ranker_score(Ranker *self, PyObject *args)
{
    return fill(self, args, self->ranker->n_kernels * sizeof(double), fill_scores);
}

PyDoc_STRVAR(
    supported_doc,
    "supported(problem, out) -> int: write which kernels support the problem into bool (kernels,), return how many.");

/* Implement Ranker.supported; see supported_doc. */
static PyObject *ranker_supported(Ranker *self, PyObject *args)
{
    return fill(self, args, self->ranker->n_kernels, fill_supported);
}

PyDoc_STRVAR(features_doc,
             "features(problem, out): write the features that trees use into float64 (kernels, features).");

/* Implement Ranker.features; see features_doc. */
static PyObject *ranker_features(Ranker *self, PyObject *args)
{
    return fill(self, args, (Py_ssize_t)self->ranker->n_kernels * self->ranker->features.count * sizeof(double),
                fill_features);
}

static PyMethodDef RANKER_METHODS[] = {
    {"rank", (PyCFunction)ranker_rank, METH_VARARGS, rank_doc},
    {"score", (PyCFunction)ranker_score, METH_VARARGS, score_doc},
    {"supported", (PyCFunction)ranker_supported, METH_VARARGS, supported_doc},
    {"features", (PyCFunction)ranker_features, METH_VARARGS, features_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot RANKER_SLOTS[] = {
    {Py_tp_doc, "A compiled model. ranker.h describes it; tilewise/model/_ranker.py makes it."},
    {Py_tp_new, ranker_new},
    {Py_tp_dealloc, ranker_dealloc},
    {Py_tp_methods, RANKER_METHODS},
    {0, NULL},
};

static PyType_Spec RANKER_SPEC = {"tilewise.core._core.Ranker", sizeof(Ranker), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, RANKER_SLOTS};

/* ---- module --------------------------------------------------------------------------------------------------------
 */

PyDoc_STRVAR(
    parse_doc,
    "parse_trees(text, begin, n_features) -> (roots, feature, threshold, children, missing, default_left, value, "
    "depth), arrays as bytes; or None for unusual text, which the reader in Python explains or accepts.");

/* Implement parse_trees; see parse_doc. */
static PyObject *parse_trees(PyObject *module, PyObject *args)
{
    (void)module;
    const char *text;
    Py_ssize_t length;
    Py_ssize_t begin;
    int n_features;
    if (!PyArg_ParseTuple(args, "s#ni", &text, &length, &begin, &n_features))
        return NULL;
    if (begin < 0 || begin > length)
        Py_RETURN_NONE;
    tw_text_trees trees;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = tw_text_read(text + begin, (size_t)(length - begin), n_features, &trees);
    Py_END_ALLOW_THREADS;
    if (failed)
        Py_RETURN_NONE;
    PyObject *result = Py_BuildValue(
        "y#y#y#y#y#y#y#i", trees.roots, trees.n_trees * sizeof *trees.roots, trees.feature,
        trees.n_nodes * sizeof *trees.feature, trees.threshold, trees.n_nodes * sizeof *trees.threshold, trees.children,
        2 * trees.n_nodes * sizeof *trees.children, trees.missing, (Py_ssize_t)trees.n_nodes, trees.default_left,
        (Py_ssize_t)trees.n_nodes, trees.value, trees.n_nodes * sizeof *trees.value, trees.depth);
    tw_text_free(&trees);
    return result;
}

static PyMethodDef METHODS[] = {
    {"parse_trees", parse_trees, METH_VARARGS, parse_doc},
    {"key_of", tw_key_of, METH_O, tw_key_doc},
    {NULL, NULL, 0, NULL},
};

/* Import NumPy's C API and add the types to the module. Return 0 or -1. */
static int module_exec(PyObject *module)
{
    if (PyArray_ImportNumPyAPI() < 0 || PyUFunc_ImportUFuncAPI() < 0)
        return -1;
    PyObject *type = PyType_FromModuleAndSpec(module, &RANKER_SPEC, NULL);
    int failed = !type || PyModule_AddObjectRef(module, "Ranker", type);
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, .m_name = "_core", .m_doc = "The ranking core, compiled.",
                             .m_methods = METHODS, .m_slots = SLOTS};

/* Return the module definition to Python. */
PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&MODULE);
}
