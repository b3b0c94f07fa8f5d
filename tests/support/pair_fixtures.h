/* pair_fixtures.h - one backend_pair for all cases of a program. */
#ifndef EXF_TESTS_PAIR_FIXTURES_H
#define EXF_TESTS_PAIR_FIXTURES_H
#include "tests/support/backend_pair.h"
#include "tests/support/fixtures.h"

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
#endif
