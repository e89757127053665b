/* A look-up key from a dict. _key.h has the contract. */
#include "_key.h"

const char tw_key_doc[] = "key_of(dict) -> (*names, *values, *types): return a hashable key of a dict.";

PyObject *tw_key_of(PyObject *module, PyObject *dict)
{
    (void)module;
    if (!PyDict_CheckExact(dict)) {
        PyErr_SetString(PyExc_TypeError, "expected a dict");
        return NULL;
    }
    const Py_ssize_t n = PyDict_GET_SIZE(dict);
    PyObject *key = PyTuple_New(3 * n), *name, *value;
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; key && i < n && PyDict_Next(dict, &at, &name, &value); i++) {
        PyTuple_SET_ITEM(key, i, Py_NewRef(name));
        PyTuple_SET_ITEM(key, n + i, Py_NewRef(value));
        PyTuple_SET_ITEM(key, 2 * n + i, Py_NewRef((PyObject *)Py_TYPE(value)));
    }
    return key;
}
