/* gemm_cuda.cu - products through cuBLAS in the queue's compute mode; see gemm.h.
 *
 * cuBLAS is column-major: a row-major y = x w^T is its y^T = w x^T. */
#include "kernels/cuda_queue.cuh"
#include "kernels/gemm.h"

static void gemm(exf_queue *q, cublasOperation_t op, float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k,
                 float alpha, float beta)
{
    if (q->err.code != EXF_OK || m == 0 || n == 0) return;
    exf_cublas_note(q, q->cublas->gemm(q->blas, op, CUBLAS_OP_N, n, m, k, &alpha, w, CUDA_R_32F, ldw, x, CUDA_R_32F, ldx, &beta, y, CUDA_R_32F,
                                    ldy, q->products, CUBLAS_GEMM_DEFAULT), "gemm");
}

void exf_gemm_xwt_cuda(exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k, float alpha,
                       float beta)
{
    gemm(q, CUBLAS_OP_T, y, ldy, x, ldx, w, ldw, m, n, k, alpha, beta);
}

void exf_gemm_xw_cuda(exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k, float alpha,
                      float beta)
{
    gemm(q, CUBLAS_OP_N, y, ldy, x, ldx, w, ldw, m, n, k, alpha, beta);
}
