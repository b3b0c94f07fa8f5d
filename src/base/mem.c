/* mem.c - checked allocation; see mem.h. */
#if defined __linux__
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#endif
#include "base/mem.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64, RESERVE = 4 << 20 };

static atomic_size_t asked, fail_at;

static exf_code refused(size_t bytes, const char *what, exf_err *err)
{
    return exf_fail(err, EXF_NOSPACE, "out of memory: %.1f MiB for %s", (double)bytes / 1048576.0, what);
}

exf_code exf_mem_mul(size_t *out, size_t a, size_t b, const char *what, exf_err *err)
{
    if (b && a > SIZE_MAX / b) return exf_fail(err, EXF_NOSPACE, "size overflow: %zu x %zu for %s", a, b, what);
    *out = a * b;
    return EXF_OK;
}

exf_code exf_mem_raw(void *out, size_t n, size_t size, const char *what, exf_err *err)
{
    void *p = NULL;
    size_t bytes = 0;
    memcpy(out, &p, sizeof p);
    exf_code rc = exf_mem_mul(&bytes, n, size, what, err);
    if (rc != EXF_OK) return rc;
    size_t turn = atomic_fetch_add(&asked, 1) + 1;
    if (turn == atomic_load(&fail_at) || posix_memalign(&p, ALIGNMENT, bytes ? bytes : 1) != 0) return refused(bytes, what, err);
    memcpy(out, &p, sizeof p);
    return EXF_OK;
}

exf_code exf_mem_new(void *out, size_t n, size_t size, const char *what, exf_err *err)
{
    void *p;
    exf_code rc = exf_mem_raw(out, n, size, what, err);
    if (rc != EXF_OK) return rc;
    memcpy(&p, out, sizeof p);
    memset(p, 0, n * size);
    return EXF_OK;
}

exf_code exf_mem_grow(void *array, size_t *cap, size_t need, size_t size, const char *what, exf_err *err)
{
    if (need <= *cap) return EXF_OK;
    size_t grown = *cap < 8 ? 8 : *cap;
    while (grown < need) grown = grown > SIZE_MAX / 2 ? need : grown * 2;
    void *old, *p = NULL;
    memcpy(&old, array, sizeof old);
    exf_code rc = exf_mem_new(&p, grown, size, what, err);
    if (rc != EXF_OK) return rc;
    if (old) memcpy(p, old, *cap * size);
    free(old);
    memcpy(array, &p, sizeof p);
    *cap = grown;
    return EXF_OK;
}

exf_code exf_mem_dup(char **out, const void *bytes, size_t len, const char *what, exf_err *err)
{
    *out = NULL;
    if (len == SIZE_MAX) return exf_fail(err, EXF_NOSPACE, "size overflow: %zu + 1 for %s", len, what);
    exf_code rc = exf_mem_new(out, len + 1, 1, what, err);
    if (rc == EXF_OK && len) memcpy(*out, bytes, len);
    return rc;
}

exf_code exf_mem_strdup(char **out, const char *s, const char *what, exf_err *err)
{
    return exf_mem_dup(out, s, strlen(s), what, err);
}

/* Maps the memory and does not touch it: malloc() would keep the block and change where later ones lie. */
exf_code exf_mem_reserve(const char *what, exf_err *err)
{
    void *p = mmap(NULL, RESERVE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return refused(RESERVE, what, err);
    munmap(p, RESERVE);
    return EXF_OK;
}

void exf_mem_free(void *p)
{
    free(p);
}

size_t exf_mem_fail_at(size_t n)
{
    atomic_store(&fail_at, n);
    return atomic_exchange(&asked, 0);
}
