/* mem.h - checked allocation; all heap memory of ExFold comes from these functions.
 *
 * Sizes are checked for overflow, blocks are aligned to 64 bytes (a cache line and an
 * AVX-512 vector) and zeroed, except by exf_mem_raw(); an error names the size and the
 * object.  Tests can make the n-th allocation fail.
 * Ownership: the caller frees with exf_mem_free(); NULL is allowed there.
 * Thread-safe. */
#ifndef EXF_BASE_MEM_H
#define EXF_BASE_MEM_H
#include "base/err.h"

#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

/* *out = n zeroed elements of `size` bytes (never NULL on success, even for
 * n = 0).  `what` names the object in the message: "hidden states".
 * On failure *out is NULL and the code EXF_NOSPACE. */
exf_code exf_mem_new(void *out, size_t n, size_t size, const char *what, exf_err *err) EXF_CHECKED;

/* The same without zeroing, for large buffers that are written before they are read: the
 * system maps a page only when it is first touched. */
exf_code exf_mem_raw(void *out, size_t n, size_t size, const char *what, exf_err *err) EXF_CHECKED;

/* Grows the array *p of capacity *cap to at least `need` elements, at least doubling
 * it; the old elements are kept, on failure in place. */
exf_code exf_mem_grow(void *p, size_t *cap, size_t need, size_t size, const char *what, exf_err *err) EXF_CHECKED;

/* A copy of len bytes (strlen(s) for exf_mem_strdup) with a NUL after it. */
exf_code exf_mem_dup(char **out, const void *bytes, size_t len, const char *what, exf_err *err) EXF_CHECKED;
exf_code exf_mem_strdup(char **out, const char *s, const char *what, exf_err *err) EXF_CHECKED;

void exf_mem_free(void *p);

/* Returns EXF_OK if the system would give 4 MiB more now: asked before a call into a library that crashes where a small
 * allocation of its own fails (libhdf5 1.10, libcrypto while it starts).  `what` names it.  Nothing is held. */
exf_code exf_mem_reserve(const char *what, exf_err *err) EXF_CHECKED;

/* *out = a*b; EXF_NOSPACE naming `what` if that does not fit a size_t. */
exf_code exf_mem_mul(size_t *out, size_t a, size_t b, const char *what, exf_err *err) EXF_CHECKED;

/* Tests: the n-th allocation from now on fails (1 is the next); 0 turns it off.
 * Returns how many allocations were asked for since the last call. */
size_t exf_mem_fail_at(size_t n);

/* Scratch memory of one worker, taken front to back and given back all at once.
 *
 * A carving function takes a set of arrays from an arena.  Run with base NULL it only counts, so the function that uses memory also
 * says how much it needs. */
typedef struct {
    float *base;
    size_t used; /* floats */
} exf_arena;

/* n floats that begin at a multiple of 256 bytes after base. */
static inline float *exf_arena_take(exf_arena *a, size_t n)
{
    float *taken = a->base ? a->base + a->used : NULL;
    a->used += (n + 63) & ~(size_t)63;
    return taken;
}

/* The same for any type. */
static inline void *exf_take_bytes(exf_arena *a, size_t bytes)
{
    return exf_arena_take(a, (bytes + sizeof(float) - 1) / sizeof(float));
}

#ifdef __cplusplus
}
#endif
#endif
