/* arena.h - an arena hands out one worker's scratch floats front to back; resetting
 * `used` frees them all at once.  With base NULL it only counts the floats, so that the
 * same code computes how large the arena must be. */
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
