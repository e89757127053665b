/* What constructors do with the arrays they are given. */
#ifndef TILEWISE_COPY_H
#define TILEWISE_COPY_H

#include <stdlib.h>
#include <string.h>

/* A copy of `count` items of `size` bytes, to be freed; NULL where memory is short. */
static inline void *tw_copy(const void *from, size_t count, size_t size)
{
    void *to = malloc(count ? count * size : 1);
    if (to && count)
        memcpy(to, from, count * size);
    return to;
}

#endif
