/* arena.h - scratch memory of one worker, taken front to back and given back all at once.
 *
 * A carving function takes a set of arrays from an arena.  Run with base NULL it only
 * counts, so the function that uses memory also says how much it needs. */
#ifndef EXF_BASE_ARENA_H
#define EXF_BASE_ARENA_H
#include <stddef.h>

typedef struct {
    float *base;
    size_t used; /* floats */
} exf_arena;

/* n floats that begin at a multiple of 256 bytes after base. */
static inline float *exf_arena_take(exf_arena *a, size_t n)
{
    float *p = a->base ? a->base + a->used : NULL;
    a->used += (n + 63) & ~(size_t)63;
    return p;
}

/* The same for any type. */
static inline void *exf_take_bytes(exf_arena *a, size_t bytes)
{
    return exf_arena_take(a, (bytes + sizeof(float) - 1) / sizeof(float));
}
#endif
