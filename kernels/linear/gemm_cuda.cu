/* gemm_cuda.cu - products through cuBLAS; see gemm.h.
 *
 * cuBLAS is column-major: a row-major y = x w^T is its y^T = w x^T.  A float32 x
 * before a bfloat16 w is first written into the queue's own buffer, as many rows at a
 * time as fit: how many that is depends on the shape alone, so bits do too.  A queue
 * that computes in bfloat16 rounds x; one that computes in float32 splits it into
 * three terms (split.cuh), which take one product each, the smallest terms first. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/linear/gemm.h"
#include "kernels/linear/split.cuh"
#include "kernels/rows/rounding.h"

static void gemm(exf_queue *q, cublasOperation_t op, float *y, int ldy, const void *x, int ldx, const void *w, int ldw,
                 cudaDataType type, int m, int n, int k, float alpha, float beta)
{
    if (m == 0 || n == 0 || !exf_cublas_ready(q)) return;
    exf_cublas_note(q,
                    q->cublas->gemm(q->blas, op, CUBLAS_OP_N, n, m, k, &alpha, w, type, ldw, x, type, ldx, &beta, y, CUDA_R_32F,
                                    ldy, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                    "gemm");
}

/* Bytes after the buffer for the alignment of terms. */
enum { ALIGNMENT_BYTES = 1024 };

/* Room for rounded rows, made at the first product that needs it. */
static bool have_room(exf_queue *q)
{
    if (q->err.code != EXF_OK) return false;
    if (q->rounded) return true;
    return exf_cuda_note(q, cudaMalloc((void **)&q->rounded, EXF_ROUNDED_BYTES + ALIGNMENT_BYTES), "product workspace");
}

/* Rows of `width` numbers that the buffer holds: whole tiles of 128 where it holds one. */
static int rows_at_a_time(int width, int terms)
{
    size_t most = EXF_ROUNDED_BYTES / 2 / (size_t)terms / (size_t)(width > 0 ? width : 1);
    int rows = most > 1 << 30 ? 1 << 30 : (int)most;
    return rows > 128 ? rows / 128 * 128 : rows;
}

/* Terms that this queue makes of a float32 that meets a bfloat16. */
static int terms_of(const exf_queue *q)
{
    return exf_rounds(q) ? 1 : EXF_SPLIT_TERMS;
}

/* Elements between the terms of n elements: term after term is 256-byte aligned. */
static size_t apart_of(size_t n)
{
    return (n + 127) / 128 * 128;
}

/* The terms of x [rows, width] into the buffer, rows `width` apart. */
static void write_terms(exf_queue *q, const float *x, int ldx, int rows, int width)
{
    if (exf_rounds(q))
        exf_round_rows_cuda(q, q->rounded, width, x, ldx, rows, width);
    else
        exf_split_rows_cuda(q, q->rounded, apart_of((size_t)rows * (size_t)width), x, ldx, rows, width);
}

static void gemm_rounded(exf_queue *q, float *y, int ldy, const float *x, int ldx, const void *w, int ldw, int m, int n, int k,
                         float alpha, float beta)
{
    int terms = terms_of(q), most = rows_at_a_time(k, terms);
    if (m == 0 || n == 0 || !have_room(q)) return;
    if (most < 1) exf_fail(&q->err, EXF_INTERNAL, "product over %d columns: a row is too long", k);
    for (int at = 0; at < m && most > 0; at += most) {
        int rows = m - at < most ? m - at : most;
        size_t apart = apart_of((size_t)rows * (size_t)k);
        write_terms(q, x + (size_t)at * ldx, ldx, rows, k);
        for (int term = terms - 1; term >= 0; term--)
            gemm(q, CUBLAS_OP_T, y + (size_t)at * ldy, ldy, q->rounded + term * apart, k, w, ldw, CUDA_R_16BF, rows, n, k, alpha,
                 term == terms - 1 ? beta : 1);
    }
}

int exf_has_bf16_products_cuda(void)
{
    enum { UNKNOWN = -1 };
    static const int major = [] {
        int device = 0, value = 0;
        if (cudaGetDevice(&device) != cudaSuccess ||
            cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess)
            value = UNKNOWN;
        return value;
    }();
    return major == UNKNOWN || major >= 8;
}

/* On an older device a float32 product with a bfloat16 w widens rows of w in the buffer. */
static void gemm_widened(exf_queue *q, float *y, int ldy, const float *x, int ldx, const uint16_t *w, int ldw, int m, int n, int k,
                         float alpha, float beta)
{
    float *wide = reinterpret_cast<float *>(q->rounded);
    int most = (int)(EXF_ROUNDED_BYTES / sizeof *wide / (size_t)(ldw > 0 ? ldw : 1));
    if (most < 1) exf_fail(&q->err, EXF_INTERNAL, "product over %d columns: a row is too long", k);
    for (int at = 0; at < n && most > 0; at += most) {
        int rows = n - at < most ? n - at : most;
        exf_widen_cuda(q, wide, w + (size_t)at * ldw, (size_t)(rows - 1) * ldw + k);
        gemm(q, CUBLAS_OP_T, y + at, ldy, x, ldx, wide, ldw, CUDA_R_32F, m, rows, k, alpha, beta);
    }
}

void exf_product_xwt_cuda(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw, int m, int n, int k,
                          float alpha, float beta)
{
    if (x.number == w.number)
        gemm(q, CUBLAS_OP_T, y, ldy, x.p, ldx, w.p, ldw, w.number == EXF_NUMBER_BF16 ? CUDA_R_16BF : CUDA_R_32F, m, n, k, alpha,
             beta);
    else if (w.number == EXF_NUMBER_BF16 && !exf_rounds(q) && !exf_has_bf16_products_cuda() && have_room(q))
        gemm_widened(q, y, ldy, static_cast<const float *>(x.p), ldx, static_cast<const uint16_t *>(w.p), ldw, m, n, k, alpha,
                     beta);
    else if (w.number == EXF_NUMBER_BF16)
        gemm_rounded(q, y, ldy, static_cast<const float *>(x.p), ldx, w.p, ldw, m, n, k, alpha, beta);
    else if (q->err.code == EXF_OK)
        exf_fail(&q->err, EXF_INTERNAL, "product of a rounded [%d, %d] with float32 weights", m, k);
}

static void gemm_many(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw, const exf_product_steps *s,
                      int m, int n, int k, float beta)
{
    const float one = 1;
    cudaDataType type = w.number == EXF_NUMBER_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    if (!exf_cublas_ready(q)) return;
    exf_cublas_note(q,
                    q->cublas->gemm_batched(q->blas, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, w.p, type, ldw, (long long)s->w, x.p,
                                            type, ldx, s->x, &beta, y, CUDA_R_32F, ldy, s->y, s->count, CUBLAS_COMPUTE_32F,
                                            CUBLAS_GEMM_DEFAULT),
                    "gemm");
}

static void gemm_many_rounded(exf_queue *q, float *y, int ldy, const float *x, int ldx, exf_matrix w, int ldw,
                              const exf_product_steps *s, int m, int n, int k)
{
    int width = (s->count - 1) * s->x + k, terms = terms_of(q), most = rows_at_a_time(width, terms);
    if (!have_room(q)) return;
    for (int at = 0; at < m; at += most) {
        int rows = m - at < most ? m - at : most;
        size_t apart = apart_of((size_t)rows * (size_t)width);
        write_terms(q, x + (size_t)at * ldx, ldx, rows, width);
        for (int term = terms - 1; term >= 0; term--)
            gemm_many(q, y + (size_t)at * ldy, ldy, exf_bf16(q->rounded + term * apart), width, w, ldw, s, rows, n, k,
                      term < terms - 1);
    }
}

void exf_product_xwt_many_cuda(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw,
                               const exf_product_steps *s, int m, int n, int k)
{
    int width = (s->count - 1) * s->x + k;
    if (m == 0 || n == 0 || s->count == 0) return;
    if (x.number == w.number) {
        gemm_many(q, y, ldy, x, ldx, w, ldw, s, m, n, k, 0);
        return;
    }
    if (w.number == EXF_NUMBER_BF16 && rows_at_a_time(width, terms_of(q)) > 0 && (exf_rounds(q) || exf_has_bf16_products_cuda())) {
        gemm_many_rounded(q, y, ldy, static_cast<const float *>(x.p), ldx, w, ldw, s, m, n, k);
        return;
    }
    for (int i = 0; i < s->count; i++) /* as single products have it, or say why not */
        exf_product_xwt_cuda(q, y + (size_t)i * s->y, ldy, exf_matrix_at(x, (size_t)i * s->x), ldx,
                             exf_matrix_at(w, (size_t)i * s->w), ldw, m, n, k, 1, 0);
}

void exf_gemm_xwt_cuda(exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k,
                       float alpha, float beta)
{
    gemm(q, CUBLAS_OP_T, y, ldy, x, ldx, w, ldw, CUDA_R_32F, m, n, k, alpha, beta);
}

void exf_gemm_xw_cuda(exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k,
                      float alpha, float beta)
{
    gemm(q, CUBLAS_OP_N, y, ldy, x, ldx, w, ldw, CUDA_R_32F, m, n, k, alpha, beta);
}
