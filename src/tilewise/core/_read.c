/* Conversion of Python's arrays into the parts of a ranker. _read.h has the contract. */
#include "_read.h"

#include <string.h>

/* ---- the buffer protocol ------------------------------------------------------------------------------------------
 */

typedef struct {
    Py_buffer view;
    Py_ssize_t count;
} array;

enum { MAX_ARRAYS = 24 };

typedef struct {
    array held[MAX_ARRAYS];
    int count;
} arrays;

/* Return the items of an array and their number, valid until `release`; NULL with an exception set. */
static const void *take(arrays *a, PyObject *object, Py_ssize_t item, Py_ssize_t *count)
{
    if (!object || a->count == MAX_ARRAYS) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "more arrays than a part of the ranker has");
        return NULL;
    }
    Py_buffer *view = &a->held[a->count].view;
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS))
        return NULL;
    a->count++;
    if (view->len % item) {
        PyErr_SetString(PyExc_ValueError, "an array's length is not a multiple of its item size");
        return NULL;
    }
    *count = view->len / item;
    return view->buf;
}

/* Release all arrays of `take`. */
static void release(arrays *a)
{
    for (int i = 0; i < a->count; i++)
        PyBuffer_Release(&a->held[i].view);
}

void tw_report_mismatch(const char *part)
{
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "%s: its arrays are inconsistent or exceed the limits of the core", part);
}

tw_bytecode *tw_read_bytecode(PyObject *parts, tw_math math)
{
    arrays a = {.count = 0};
    tw_bytecode *bytecode = NULL;
    int n_inputs, n_slots;
    PyObject *constants, *instructions, *index;
    Py_ssize_t n_constants, n_instructions, n_index;
    if (PyArg_ParseTuple(parts, "iiOOO", &n_inputs, &n_slots, &constants, &instructions, &index)) {
        const void *c = take(&a, constants, sizeof(tw_slot), &n_constants);
        const void *s = c ? take(&a, instructions, sizeof(tw_instruction), &n_instructions) : NULL;
        const void *i = s ? take(&a, index, sizeof(int32_t), &n_index) : NULL;
        if (i && !(bytecode = tw_bytecode_new(n_inputs, c, (int32_t)n_constants, s, (int32_t)n_instructions, i,
                                              (int32_t)n_index, n_slots, math)))
            tw_report_mismatch("bytecode");
    }
    release(&a);
    return bytecode;
}

tw_forest *tw_read_forest(PyObject *parts)
{
    arrays a = {.count = 0};
    tw_forest *forest = NULL;
    int n_features;
    PyObject *object[7];
    static const Py_ssize_t ITEM[7] = {8, 8, 8, 8, 1, 1, 8};
    const void *data[7];
    Py_ssize_t n[7];
    if (!PyArg_ParseTuple(parts, "iOOOOOOO", &n_features, &object[0], &object[1], &object[2], &object[3], &object[4],
                          &object[5], &object[6]))
        return NULL;
    int i = 0;
    while (i < 7 && (data[i] = take(&a, object[i], ITEM[i], &n[i])))
        i++;
    if (i == 7) { /* roots, feature, threshold, children, missing, default_left, value */
        int fits = n[2] == n[1] && n[3] == 2 * n[1] && n[4] == n[1] && n[5] == n[1] && n[6] == n[1];
        if (fits) {
            Py_BEGIN_ALLOW_THREADS; /* large models take milliseconds */
            forest = tw_forest_new((int32_t)n[0], data[0], n[1], data[1], data[2], data[3], data[4], data[5], data[6],
                                   n_features);
            Py_END_ALLOW_THREADS;
        }
        if (!forest)
            tw_report_mismatch("trees");
    }
    release(&a);
    return forest;
}

tw_cost_model *tw_read_cost_model(PyObject *parts, int n_kernels)
{
    arrays a = {.count = 0};
    tw_cost_model *cost_model = NULL;
    int n_costs, n_drivers;
    tw_limits limits;
    PyObject *object[5];
    const void *data[5];
    Py_ssize_t n[5];
    if (!PyArg_ParseTuple(parts, "ii(dddd)OOOOO", &n_costs, &n_drivers, &limits.intercept, &limits.most_deviations,
                          &limits.most_correction, &limits.most_share, &object[0], &object[1], &object[2], &object[3],
                          &object[4]))
        return NULL;
    int i = 0;
    while (i < 5 && (data[i] = take(&a, object[i], 8, &n[i])))
        i++;
    if (i == 5) { /* binaries, factors, centre, scale, weights */
        Py_ssize_t rows = n[0] + 1, columns = 1 + 2 * ((Py_ssize_t)n_costs + n_drivers);
        int fits = n[1] == rows * n_costs && n[2] == n_costs && n[3] == n_costs && n[4] == n_kernels * rows * columns;
        if (fits) {
            Py_BEGIN_ALLOW_THREADS;
            cost_model = tw_cost_model_new((int32_t)n[0], n_costs, n_drivers, n_kernels, limits, data[0], data[1],
                                           data[2], data[3], data[4]);
            Py_END_ALLOW_THREADS;
        }
        if (!cost_model)
            tw_report_mismatch("cost model");
    }
    release(&a);
    return cost_model;
}

int tw_read_outputs(PyObject *object, tw_outputs *outputs)
{
    arrays a = {.count = 0};
    Py_ssize_t count = 0;
    const void *data = take(&a, object, sizeof(tw_output), &count);
    int failed = !data || !(outputs->at = malloc((count + 1) * sizeof *outputs->at));
    if (!failed) {
        memcpy(outputs->at, data, count * sizeof *outputs->at);
        outputs->count = (int32_t)count;
    }
    release(&a);
    return failed ? -1 : 0;
}

int tw_read_classes(PyObject *list, tw_ranker *r)
{
    Py_ssize_t parts = PySequence_Size(list);
    if (parts < 0 || !(r->classes = calloc(parts + 1, sizeof *r->classes)))
        return -1;
    r->n_classes = (int32_t)parts;
    for (Py_ssize_t i = 0; i < parts; i++) {
        arrays a = {.count = 0};
        tw_classes *c = &r->classes[i];
        Py_ssize_t count = 0;
        PyObject *object = PySequence_GetItem(list, i);
        const int32_t *of_kernel = take(&a, object, sizeof *of_kernel, &count);
        int failed = !of_kernel || count != r->n_kernels || tw_classes_set(c, of_kernel, r->n_kernels);
        release(&a);
        Py_XDECREF(object);
        if (failed)
            return -1;
    }
    return 0;
}
