/* A key for look-ups by a problem's dict; see tilewise/dispatch/mapping.py. */
#ifndef TILEWISE_KEY_H
#define TILEWISE_KEY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char tw_key_doc[];

/* The names, values and types of a dict, in a row; NULL with an exception set. */
PyObject *tw_key_of(PyObject *module, PyObject *dict);

#endif
