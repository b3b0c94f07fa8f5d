/* gemm.h - float32 matrix products, row-major, with row strides (ld).
 *
 * Accuracy: float32 accumulation in the library's order; |error| of an element
 * is at most k * 2^-24 * sum |x||w|.  A device multiplies a float32 x by a bfloat16 w in
 * three products of bfloat16, x being the sum of three such terms; its tensor cores cut
 * sums off where others round, so the bound is k * 2^-23 * sum |x||w|.  One thread per call: the engine runs many
 * units side by side, and a unit's bits must not depend on its neighbours. */
#ifndef EXF_KERNELS_GEMM_H
#define EXF_KERNELS_GEMM_H
#include "base/err.h"
#include "kernels/linear/matrix.h"

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

/* "OpenBLAS 0.3.21 SkylakeX": library and the kernel set it chose here. */
const char *exf_gemm_library_cpu(void);

/* OpenBLAS chooses its kernels by a list of processors it knows; one newer than
 * the library gets those of 2004.  Returns the name of a better set that this
 * processor can run ("SkylakeX", "Haswell"), or NULL if the choice was right.
 * It is made when the library is loaded, so it takes a new process with
 * OPENBLAS_CORETYPE set to change it. */
const char *exf_gemm_better_kernels_cpu(void);

/* y[m,n] = alpha * x[m,k] w[n,k]^T + beta * y.   A linear layer: w is [out, in]. */
void exf_gemm_xwt_cpu(float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k, float alpha,
                      float beta);
/* The same for several, alpha 1 and beta 0; see exf_product_steps. */
void exf_gemm_xwt_many_cpu(float *y, int ldy, const float *x, int ldx, const float *w, int ldw, const exf_product_steps *s, int m,
                           int n, int k);
/* y[m,n] = alpha * x[m,k] w[k,n] + beta * y. */
void exf_gemm_xw_cpu(float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k, float alpha,
                     float beta);

/* Returns 1 if the device has products of bfloat16: compute capability 8.0 and later, or one that the driver does not tell,
 * so that a GPU that fails ends the run and does not change its numbers. */
int exf_has_bf16_products_cuda(void);
/* On a GPU: exf_product_* multiply operands of either number, exf_gemm_* float32 ones. */
void exf_product_xwt_cuda(struct exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw, int m, int n, int k,
                          float alpha, float beta);
void exf_product_xwt_many_cuda(struct exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw,
                               const exf_product_steps *s, int m, int n, int k);
void exf_gemm_xwt_cuda(struct exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n,
                       int k, float alpha, float beta);
void exf_gemm_xw_cuda(struct exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k,
                      float alpha, float beta);
#ifdef __cplusplus
}
#endif
#endif
