/* A key for look-ups by the dict of a problem; dispatch/_mapping.py uses it. */
#ifndef TILEWISE_KEY_H
#define TILEWISE_KEY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char tw_key_doc[];

/* Return a new tuple of the names, values and types of a dict; NULL with an exception set. */
PyObject *tw_key_of(PyObject *module, PyObject *dict);

#endif
