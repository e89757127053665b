/* Python's door to the ranking core, which runs without the GIL. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>

#include <string.h>

#include "_key.h"
#include "_read.h"
#include "text.h"

/* ---- NumPy's own logarithms, so that features come out the same, bit for bit ------------------------------------- */

typedef struct {
    PyUFuncGenericFunction loop;
    void *data;
} numpy_loop;

static void call_loop(void *context, const double *x, double *y, size_t n)
{
    const numpy_loop *numpy = context;
    char *args[2] = {(char *)x, (char *)y};
    npy_intp count = (npy_intp)n, steps[2] = {sizeof *x, sizeof *y};
    numpy->loop(args, &count, steps, numpy->data);
}

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
    PyErr_SetString(PyExc_TypeError, "expected a ufunc of one double");
    return -1;
}

/* ---- Ranker ------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    tw_ranker *ranker;
    numpy_loop log, log2;
} Ranker;

static void ranker_dealloc(Ranker *self)
{
    PyTypeObject *type = Py_TYPE(self);
    tw_ranker_free(self->ranker);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *ranker_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"n_kernels", "program", "classes", "rules", "features", "problem", "costs", "drivers",
                            "single", "scores", "scale", "estimate", "shortlist", "log", "log2", NULL};
    PyObject *program, *classes, *rules, *features, *problem, *costs, *drivers, *single, *scores, *scale, *estimate;
    PyObject *log, *log2;
    int n_kernels, shortlist;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iOOOOOOOOOOOiOO", names, &n_kernels, &program, &classes, &rules,
                                     &features, &problem, &costs, &drivers, &single, &scores, &scale, &estimate,
                                     &shortlist, &log, &log2))
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
    if (!(r->program = tw_read_program(program, math)) || tw_read_classes(classes, r) || tw_read_outputs(rules, &r->rules) ||
        tw_read_outputs(features, &r->features) || tw_read_outputs(problem, &r->problem) ||
        tw_read_outputs(costs, &r->costs) || tw_read_outputs(drivers, &r->drivers) || tw_read_outputs(single, &singles) ||
        !(r->scores = tw_read_forest(scores)) || (scale != Py_None && !(r->scale = tw_read_forest(scale))) ||
        (estimate != Py_None && !(r->estimate = tw_read_estimate(estimate, n_kernels))))
        goto fail;
    if (r->estimate && singles.count == 2)
        r->program_class = singles.at[0], r->log_work = singles.at[1];
    if ((r->estimate && singles.count != 2) || tw_ranker_check(r))
        goto fail;
    free(singles.at);
    return (PyObject *)self;
fail:
    free(singles.at);
    tw_misfit("ranker");
    Py_DECREF(self);
    return NULL;
}

enum { MOST_INPUTS = 64 };

static int read_inputs(Ranker *self, PyObject *tuple, int64_t *inputs)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != self->ranker->program->n_inputs ||
        PyTuple_GET_SIZE(tuple) > MOST_INPUTS) {
        PyErr_SetString(PyExc_ValueError, "a problem is a tuple of its columns");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        inputs[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (inputs[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

static PyObject *failure(int32_t code)
{
    if (code == TW_NO_MEMORY)
        return PyErr_NoMemory();
    PyErr_SetString(PyExc_OverflowError, "an integer that a rule or a feature takes exceeds int64");
    return NULL;
}

PyDoc_STRVAR(rank_doc, "rank(problem, most) -> (kernels, scores, scale): the best supported kernels, best first.\n\n"
                       "Raises:\n    OverflowError: the formulas leave int64.");

static PyObject *ranker_rank(Ranker *self, PyObject *args)
{
    int64_t inputs[MOST_INPUTS];
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

/* Fill an array of the caller's: what the three methods below have in common. */
static PyObject *fill(Ranker *self, PyObject *args, Py_ssize_t bytes, int32_t (*compute)(tw_ranker *, const int64_t *, void *))
{
    int64_t inputs[MOST_INPUTS];
    PyObject *problem;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "Ow*", &problem, &out))
        return NULL;
    int32_t code = 0;
    int failed = read_inputs(self, problem, inputs);
    if (!failed && out.len != bytes) {
        PyErr_SetString(PyExc_ValueError, "the array to fill has another size");
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

static int32_t fill_scores(tw_ranker *r, const int64_t *inputs, void *out)
{
    return tw_score(r, inputs, out);
}

static int32_t fill_supported(tw_ranker *r, const int64_t *inputs, void *out)
{
    return tw_supported(r, inputs, out);
}

static int32_t fill_features(tw_ranker *r, const int64_t *inputs, void *out)
{
    return tw_features(r, inputs, out);
}

PyDoc_STRVAR(score_doc, "score(problem, out): scores of all kernels into float64 (kernels,).");

static PyObject *ranker_score(Ranker *self, PyObject *args)
{
    return fill(self, args, self->ranker->n_kernels * sizeof(double), fill_scores);
}

PyDoc_STRVAR(supported_doc, "supported(problem, out) -> how many kernels support it; which: bool (kernels,).");

static PyObject *ranker_supported(Ranker *self, PyObject *args)
{
    return fill(self, args, self->ranker->n_kernels, fill_supported);
}

PyDoc_STRVAR(features_doc, "features(problem, out): the features that trees use into float64 (kernels, features).");

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
    {Py_tp_doc, "A compiled model; see ranker.h and tilewise/model/ranker.py, which makes it."},
    {Py_tp_new, ranker_new},
    {Py_tp_dealloc, ranker_dealloc},
    {Py_tp_methods, RANKER_METHODS},
    {0, NULL},
};

static PyType_Spec RANKER_SPEC = {"tilewise.core._core.Ranker", sizeof(Ranker), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, RANKER_SLOTS};

/* ---- module -------------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(parse_doc,
             "parse_trees(text, begin, n_features) -> (roots, feature, threshold, children, missing, default_left, value, "
             "depth) as bytes, or None where anything is unusual: then the reader in Python says what.");

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
        trees.n_nodes * sizeof *trees.feature, trees.threshold, trees.n_nodes * sizeof *trees.threshold,
        trees.children, 2 * trees.n_nodes * sizeof *trees.children, trees.missing, (Py_ssize_t)trees.n_nodes,
        trees.default_left, (Py_ssize_t)trees.n_nodes, trees.value, trees.n_nodes * sizeof *trees.value, trees.depth);
    tw_text_free(&trees);
    return result;
}

static PyMethodDef METHODS[] = {
    {"parse_trees", parse_trees, METH_VARARGS, parse_doc},
    {"key_of", tw_key_of, METH_O, tw_key_doc},
    {NULL, NULL, 0, NULL},
};

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

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&MODULE);
}
