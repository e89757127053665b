/* The error message of the C API. */
#ifndef TILEWISE_ERROR_H
#define TILEWISE_ERROR_H

/* Store a formatted message for tilewise_last_error in this thread and return `code`. */
int tw_set_error(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
