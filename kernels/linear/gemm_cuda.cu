/* gemm_cuda.cu - products through cuBLAS; see gemm.h.
 *
 * cuBLAS is column-major: a row-major y = x w^T is its y^T = w x^T.  A float32 x
 * before a bfloat16 w is rounded into the queue's own buffer first, as many rows at
 * a time as fit: how many that is depends on the shape alone, so bits do too. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/linear/gemm.h"
#include "kernels/rows/rounding.h"

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

static void gemm_many(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw, const exf_product_steps *s, int m, int n,
                      int k)
{
    const float one = 1, nought = 0;
    cudaDataType type = w.number == EXF_NUMBER_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    if (!exf_cublas_ready(q)) return;
    exf_cublas_note(q, q->cublas->gemm_batched(q->blas, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, w.p, type, ldw, (long long)s->w, x.p, type, ldx,
                                               s->x, &nought, y, CUDA_R_32F, ldy, s->y, s->count, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                    "gemm");
}

void exf_product_xwt_many_cuda(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw, const exf_product_steps *s, int m,
                               int n, int k)
{
    int width = (s->count - 1) * s->x + k, most = (int)(EXF_ROUNDED_BYTES / 2 / (size_t)(width > 0 ? width : 1));
    if (m == 0 || n == 0 || s->count == 0) return;
    if (x.number == w.number) {
        gemm_many(q, y, ldy, x, ldx, w, ldw, s, m, n, k);
        return;
    }
    if (w.number != EXF_NUMBER_BF16 || most < 1) { /* as single products have it, or say why not */
        for (int i = 0; i < s->count; i++)
            exf_product_xwt_cuda(q, y + (size_t)i * s->y, ldy, exf_matrix_at(x, (size_t)i * s->x), ldx, exf_matrix_at(w, (size_t)i * s->w), ldw,
                                 m, n, k, 1, 0);
        return;
    }
    if (!have_room(q)) return;
    most = most > 128 ? most / 128 * 128 : most;
    for (int at = 0; at < m; at += most) {
        int rows = m - at < most ? m - at : most;
        exf_round_rows_cuda(q, q->rounded, width, static_cast<const float *>(x.p) + (size_t)at * ldx, ldx, rows, width);
        gemm_many(q, y + (size_t)at * ldy, ldy, exf_bf16(q->rounded), width, w, ldw, s, rows, n, k);
    }
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
