/* gemm_cpu.c - products through OpenBLAS, one thread each. */
#include "kernels/linear/gemm.h"

#include "kernels/linear/blas_threads.h"

#include <cblas.h>
#include <stdio.h>
#include <string.h>

const char *exf_gemm_library_cpu(void)
{
    static char name[128];
    char release[64] = "";
    sscanf(openblas_get_config(), "%63s %63s", name, release);
    snprintf(name, sizeof name, "OpenBLAS %s %s", release, openblas_get_corename());
    return name;
}

const char *exf_gemm_better_kernels_cpu(void)
{
#if defined(__x86_64__)
    if (strcmp(openblas_get_corename(), "Prescott") != 0) return NULL;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
    return NULL;
}

void exf_gemm_xwt_cpu(float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k, float alpha,
                      float beta)
{
    if (m == 0 || n == 0) return;
    exf_blas_one_thread_cpu();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, alpha, x, ldx, w, ldw, beta, y, ldy);
}

void exf_gemm_xw_cpu(float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k, float alpha,
                     float beta)
{
    if (m == 0 || n == 0) return;
    exf_blas_one_thread_cpu();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, alpha, x, ldx, w, ldw, beta, y, ldy);
}

void exf_gemm_xwt_many_cpu(float *y, int ldy, const float *x, int ldx, const float *w, int ldw, const exf_product_steps *s, int m,
                           int n, int k)
{
    for (int i = 0; i < s->count; i++)
        exf_gemm_xwt_cpu(y + (size_t)i * (size_t)s->y, ldy, x + (size_t)i * (size_t)s->x, ldx, w + (size_t)i * s->w, ldw, m, n, k,
                         1, 0);
}
