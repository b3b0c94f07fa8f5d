/* gemm_rate.c - see gemm_rate.h. */
#include "kernels/linear/gemm_rate.h"

#include "base/log.h"
#include "kernels/linear/blas_threads.h"

enum { N = 768, K = 1024, ROUNDS = 8 };

/* Zeros are zeros in either type. */
static exf_matrix matrix_of(const float *p, exf_compute compute)
{
    return compute == EXF_COMPUTE_BF16 ? exf_bf16((const uint16_t *)p) : exf_f32(p);
}

exf_code exf_gemm_rate(const exf_backend *b, exf_compute compute, double *flops_per_second, exf_err *err)
{
    const int m = !b->gpu ? 128 : 8192;
    exf_queue *q = NULL;
    float *x = NULL, *w = NULL, *y = NULL;
    exf_code rc;
    EXF_TRY(exf_blas_reserve_cpu(1, err));
    EXF_TRY(b->open(&q, compute, err));
    EXF_TRY(b->alloc(&x, (size_t)m * K, sizeof *x, "rate measurement", err));
    EXF_TRY(b->alloc(&w, (size_t)N * K, sizeof *w, "rate measurement", err));
    EXF_TRY(b->alloc(&y, (size_t)m * N, sizeof *y, "rate measurement", err));
    b->zero(q, x, (size_t)m * K * sizeof *x); /* the rate does not depend on the numbers, but NaNs may be slow */
    b->zero(q, w, (size_t)N * K * sizeof *w);
    exf_matrix xo = matrix_of(x, compute), wo = matrix_of(w, compute);
    b->gemm_xwt(q, y, N, xo, K, wo, K, m, N, K, 1, 0); /* the first one loads the library */
    EXF_TRY(b->finish(q, err));
    double start = exf_clock();
    for (int i = 0; i < ROUNDS; i++) b->gemm_xwt(q, y, N, xo, K, wo, K, m, N, K, 1, 0);
    EXF_TRY(b->finish(q, err));
    *flops_per_second = 2.0 * m * N * K * ROUNDS / (exf_clock() - start);
out:
    if (y) b->free(y);
    if (w) b->free(w);
    if (x) b->free(x);
    b->close(q);
    return rc;
}
