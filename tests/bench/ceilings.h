/* ceilings.h - what a machine with a GPU can do at most, measured in a benchmark's own
 * process. */
#ifndef EXF_TESTS_BENCH_CEILINGS_H
#define EXF_TESTS_BENCH_CEILINGS_H
#include "tests/bench/bench_device.h"

typedef struct {
    double product, copy, send; /* FLOP/s, bytes/s moved, bytes/s */
} ceilings;

static inline ceilings measure(const exf_backend *b)
{
    enum { N = 8192, RUNS = 10 };
    size_t bytes = (size_t)N * N * 2;
    exf_queue *q;
    uint16_t *x, *w, *host;
    float *y;
    ceilings c;
    must(b->open(&q, EXF_COMPUTE_BF16, &err));
    must(b->alloc(&x, bytes, 1, "bench", &err));
    must(b->alloc(&w, bytes, 1, "bench", &err));
    must(b->alloc(&y, 2 * bytes, 1, "bench", &err));
    must(b->gpu->alloc_staging(&host, bytes, "bench", &err));
    for (size_t i = 0; i < bytes / 2; i++)
        host[i] = (uint16_t)(0x3f00 | (exf_rng_u64(1, 1, i) & 0x80ff)); /* zeros would run faster */
    b->upload(q, x, host, bytes);
    b->upload(q, w, host, bytes);
    for (int round = 0; round < 2; round++) { /* the first warms up */
        must(b->finish(q, &err));
        double start = exf_clock();
        for (int i = 0; i < RUNS; i++) b->gemm_xwt(q, y, N, exf_bf16(x), N, exf_bf16(w), N, N, N, N, 1, 0);
        must(b->finish(q, &err));
        c.product = 2.0 * N * N * N * RUNS / (exf_clock() - start);
        start = exf_clock();
        for (int i = 0; i < RUNS; i++) b->copy(q, y, (char *)(void *)y + bytes, bytes);
        must(b->finish(q, &err));
        c.copy = 2.0 * (double)bytes * RUNS / (exf_clock() - start);
        start = exf_clock();
        for (int i = 0; i < RUNS; i++) b->upload(q, x, host, bytes);
        must(b->finish(q, &err));
        c.send = (double)bytes * RUNS / (exf_clock() - start);
    }
    b->free(x);
    b->free(w);
    b->free(y);
    b->gpu->free_staging(host);
    b->close(q);
    return c;
}
#endif
