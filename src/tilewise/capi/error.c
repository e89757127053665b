/* The error message of the C API: one buffer per thread. */
#include "error.h"
#include "include/tilewise.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char message[512];

const char *tilewise_last_error(void)
{
    return message;
}

int tw_set_error(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return code;
}
