/* pair_fixtures.h - one backend_pair for all cases of a program. */
#ifndef EXF_TESTS_PAIR_FIXTURES_H
#define EXF_TESTS_PAIR_FIXTURES_H
#include "base/mem.h"
#include "tests/support/backend_pair.h"
#include "tests/support/fixtures.h"

#include <string.h>

static backend_pair p;

static inline void open_pair(void)
{
    pair_open(&p, EXF_TENSOR_CORES_AUTO);
}

/* The kernels of GPUs that are no Hopper (mma.sync), on any that has them. */
static inline void open_pair_mma(void)
{
    pair_open(&p, EXF_TENSOR_CORES_MMA);
}

static inline void close_pair(void)
{
    pair_close(&p);
}

static inline size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Makes an array whose bytes are all 0xff on both sides (is_poison of fixtures.h). */
static inline pair_array poisoned(size_t n)
{
    float *host;
    exf_err err;
    ck_ok(exf_mem_new(&host, n, sizeof *host, "test", &err), err);
    memset(host, 0xff, n * sizeof *host);
    pair_array a = pair_of(&p, host, n);
    exf_mem_free(host);
    return a;
}

/* Makes an array of the cosines, or sines, of n angles. */
static inline pair_array angles(size_t n, float (*of)(float))
{
    float *host;
    exf_err err;
    ck_ok(exf_mem_new(&host, n, sizeof *host, "test", &err), err);
    for (size_t i = 0; i < n; i++) host[i] = of(0.37f * (float)i);
    pair_array a = pair_of(&p, host, n);
    exf_mem_free(host);
    return a;
}

/* Copies n floats at `from` in GPU memory to new memory, which the caller frees. */
static inline float *fetched(const float *from, size_t n)
{
    float *host;
    exf_err err;
    ck_ok(exf_mem_new(&host, n, sizeof *host, "test", &err), err);
    ck_ok(p.b[1]->download(p.q[1], host, from, n * sizeof *host, &err), err);
    return host;
}
#endif
