/* Copying the arrays that constructors receive. */
#ifndef TILEWISE_COPY_H
#define TILEWISE_COPY_H

#include <stdlib.h>
#include <string.h>

/* Return a copy of `count` items of `size` bytes, which the caller frees; NULL when out of memory. */
static inline void *tw_copy(const void *from, size_t count, size_t size)
{
    void *to = malloc(count ? count * size : 1);
    if (to && count)
        memcpy(to, from, count * size);
    return to;
}

#endif
