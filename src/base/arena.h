/* arena.h - one worker's scratch floats, taken front to back and given back all at
 * once.  With base NULL it only counts, which is how its size is found. */
#ifndef EXF_BASE_ARENA_H
#define EXF_BASE_ARENA_H
#include <stddef.h>

typedef struct {
    float *base;
    size_t used;
} exf_arena;

/* n floats on a cache line of their own. */
static inline float *exf_arena_take(exf_arena *a, size_t n)
{
    float *p = a->base ? a->base + a->used : NULL;
    a->used += (n + 15) & ~(size_t)15;
    return p;
}
#endif
