/* gemm_cuda.cu - products through cuBLAS; see gemm.h.
 *
 * cuBLAS is column-major: a row-major y = x w^T is its y^T = w x^T.  A float32 x
 * before a bfloat16 w is rounded into the queue's own buffer first, as many rows at
 * a time as fit: how many that is depends on the shape alone, so bits do too. */
#include "kernels/cuda_queue.cuh"
#include "kernels/gemm.h"
#include "kernels/rounding.h"

static void gemm(exf_queue *q, cublasOperation_t op, float *y, int ldy, const void *x, int ldx, const void *w, int ldw, cudaDataType type,
                 int m, int n, int k, float alpha, float beta)
{
    if (m == 0 || n == 0 || !exf_cublas_ready(q)) return;
    exf_cublas_note(q, q->cublas->gemm(q->blas, op, CUBLAS_OP_N, n, m, k, &alpha, w, type, ldw, x, type, ldx, &beta, y, CUDA_R_32F, ldy,
                                       CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT), "gemm");
}

/* Room for rounded rows, made at the first product that needs it. */
static bool have_room(exf_queue *q)
{
    if (q->err.code != EXF_OK) return false;
    if (q->rounded) return true;
    return exf_cuda_note(q, cudaMalloc((void **)&q->rounded, EXF_ROUNDED_BYTES), "product workspace");
}

static void gemm_rounded(exf_queue *q, float *y, int ldy, const float *x, int ldx, const void *w, int ldw, int m, int n, int k, float alpha,
                         float beta)
{
    int most = (int)(EXF_ROUNDED_BYTES / 2 / (size_t)(k > 0 ? k : 1));
    if (m == 0 || n == 0 || !have_room(q)) return;
    most = most > 128 ? most / 128 * 128 : most;
    for (int at = 0; at < m; at += most) {
        int rows = m - at < most ? m - at : most;
        exf_round_rows_cuda(q, q->rounded, k, x + (size_t)at * ldx, ldx, rows, k);
        gemm(q, CUBLAS_OP_T, y + (size_t)at * ldy, ldy, q->rounded, k, w, ldw, CUDA_R_16BF, rows, n, k, alpha, beta);
    }
}

void exf_product_xwt_cuda(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw, int m, int n, int k, float alpha,
                          float beta)
{
    if (x.number == w.number)
        gemm(q, CUBLAS_OP_T, y, ldy, x.p, ldx, w.p, ldw, w.number == EXF_NUMBER_BF16 ? CUDA_R_16BF : CUDA_R_32F, m, n, k, alpha, beta);
    else if (w.number == EXF_NUMBER_BF16)
        gemm_rounded(q, y, ldy, static_cast<const float *>(x.p), ldx, w.p, ldw, m, n, k, alpha, beta);
    else if (q->err.code == EXF_OK)
        exf_fail(&q->err, EXF_INTERNAL, "product of a rounded [%d, %d] with float32 weights", m, k);
}

void exf_gemm_xwt_cuda(exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k, float alpha,
                       float beta)
{
    gemm(q, CUBLAS_OP_T, y, ldy, x, ldx, w, ldw, CUDA_R_32F, m, n, k, alpha, beta);
}

void exf_gemm_xw_cuda(exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k, float alpha,
                      float beta)
{
    gemm(q, CUBLAS_OP_N, y, ldy, x, ldx, w, ldw, CUDA_R_32F, m, n, k, alpha, beta);
}
