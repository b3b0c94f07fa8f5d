/* linear.h - linear algebra: the products of layers, the weights that a device decodes into their operands, and double
 * precision on the host.  All matrices are row-major. */
#ifndef EXF_KERNELS_LINEAR_H
#define EXF_KERNELS_LINEAR_H
#include "base/err.h"
#include "base/tensor.h"
#include "kernels/operation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- products, with row strides (ld) ----------------------------------------------------
 * Accuracy: float32 accumulation in the library's order; |error| of an element is at most k * 2^-24 * sum |x||w|.  A device
 * multiplies a float32 x by a bfloat16 w in three products of bfloat16, x being the sum of three such terms; its tensor
 * cores cut sums off where others round, so the bound is k * 2^-23 * sum |x||w|.  One thread per call: the engine runs many
 * units side by side, and a unit's bits must not depend on its neighbours. */

/* "OpenBLAS 0.3.21 SkylakeX": library and the kernel set it chose here. */
const char *exf_gemm_library_cpu(void);

/* OpenBLAS chooses its kernels by a list of processors it knows; one newer than the library gets those of 2004.  Returns
 * the name of a better set that this processor can run ("SkylakeX", "Haswell"), or NULL if the choice was right.  It is made
 * when the library is loaded, so it takes a new process with OPENBLAS_CORETYPE set to change it. */
const char *exf_gemm_better_kernels_cpu(void);

/* y[m,n] = alpha * x[m,k] w[n,k]^T + beta * y.   A linear layer: w is [out, in].  On the CPU both are float32. */
typedef void exf_gemm_xwt_op(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw, int m, int n, int k,
                             float alpha, float beta);
exf_gemm_xwt_op exf_gemm_xwt_cpu, exf_gemm_xwt_cuda;
/* The same for several of one shape, y_i = x_i w_i^T. */
typedef void exf_gemm_xwt_many_op(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw,
                                  const exf_product_steps *s, int m, int n, int k);
exf_gemm_xwt_many_op exf_gemm_xwt_many_cpu, exf_gemm_xwt_many_cuda;
/* y[m,n] = alpha * x[m,k] w[k,n] + beta * y. */
typedef void exf_gemm_xw_op(exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k,
                            float alpha, float beta);
exf_gemm_xw_op exf_gemm_xw_cpu, exf_gemm_xw_cuda;

/* Returns 1 if the device has products of bfloat16: compute capability 8.0 and later, or one that the driver does not tell,
 * so that a GPU that fails ends the run and does not change its numbers. */
int exf_has_bf16_products_cuda(void);
/* Multiplies zeros in the queue's buffer.  A process's first products take cuBLAS 0.06 s more than later ones: it loads itself. */
void exf_warm_up_products_cuda(exf_queue *q);

/* ---- weights as a checkpoint stores them, decoded on a device ----------------------------
 *
 *   plain   BF16, F16 or F32 [rows, cols], plus `add` (1 for norms stored as w - 1)
 *   FP8     E4M3 [rows, cols], a scale per block of block_rows x block_cols
 *   FP4     two E2M1 nibbles a byte, the low one the even column, cols even
 *   INT4    eight nibbles a word, columns of a row, the lowest the first; words [rows, ceil(cols / 8)]
 *   GPTQ    the same; words [cols / 8, rows]
 *   AWQ     eight nibbles a word, rows 0 2 4 6 1 3 5 7 of a column; words [cols, rows / 8]
 *
 * value = code * scale, or (code - zero) * scale, in float32, as src/model/dequantize.h has it, then rounded to nearest even
 * where the operand is bfloat16.  Scales are F32, F16, BF16, F8_E4M3 or F8_E8M0, [ceil(rows / block_rows), ceil(cols /
 * block_cols)]: row 0 is the first of a block; of GPTQ and AWQ [groups, rows]. */
typedef enum {
    EXF_DEVICE_CODED_PLAIN, EXF_DEVICE_CODED_FP8, EXF_DEVICE_CODED_FP4, EXF_DEVICE_CODED_INT4, EXF_DEVICE_CODED_GPTQ,
    EXF_DEVICE_CODED_AWQ
} exf_device_coding;

typedef struct {
    exf_device_coding coding;
    exf_dtype dtype;       /* of plain elements */
    exf_dtype scale_dtype; /* of scales */
    const void *codes, *scales;
    size_t rows, cols, block_rows, block_cols;
    float add;
    const void *zeros;     /* words of eight rows a group: INT4 [ceil(rows / 8), groups], GPTQ and AWQ [groups, rows / 8], in AWQ's
                            * order there; NULL: all zeros are 8 */
    unsigned zero_add;     /* to a stored zero, modulo 16 */
    int zero_carries;      /* 1: to the eight zeros of a word as one number */
    const void *groups;    /* int32 [cols], the group of a column; NULL: column / block_cols */
    const void *factor;    /* one float32 by which scales are multiplied; NULL: 1 */
    int divides;           /* 1: they are divided by it */
} exf_device_coded_rows;

/* to [rows, cols] of `number`, fewer than 2^31 elements; *bad (the GPU's) becomes 1 where a value is not finite, or rounds to an
 * infinite bfloat16. */
void exf_dequantize_cuda(exf_queue *q, void *to, exf_number number, const exf_device_coded_rows *c, int *bad);
/* *bad becomes 1 where one of n bfloat16, which start on a 16-byte boundary, is not finite. */
void exf_check_bf16_cuda(exf_queue *q, const uint16_t *x, size_t n, int *bad);
#ifdef __cplusplus
}
#endif

/* ---- double precision on the host: products by OpenBLAS, factorisations by the LAPACK inside it ----
 * One thread, so equal inputs give equal bits on one processor with one OpenBLAS.  Arrays do not overlap unless said. */

/* y [m, n] = alpha x [m, k] w [k, n] + beta y; leading dimensions of the rows.  _xtw: x is [k, m]. */
void exf_linalg_xw(double *y, int ldy, const double *x, int ldx, const double *w, int ldw, int m, int n, int k, double alpha,
                   double beta);
void exf_linalg_xtw(double *y, int ldy, const double *x, int ldx, const double *w, int ldw, int m, int n, int k, double alpha,
                    double beta);
/* y [n, n] = x x', x [n, k], both triangles, exactly symmetric. */
void exf_linalg_xxt(double *y, const double *x, int n, int k);

/* The columns of a [m, n], m >= n, become orthonormal, spanning what they spanned (Householder QR; where the columns are
 * dependent, whatever completes them). */
exf_code exf_linalg_orthonormalize(double *a, int m, int n, exf_err *err) EXF_CHECKED;
/* Eigenvalues w [n], falling, and their vectors in the columns of a, symmetric before. */
exf_code exf_linalg_eigen(double *a, double *w, int n, exf_err *err) EXF_CHECKED;
/* b [n, m] = a^-1 b for a symmetric and positive definite, which is overwritten; EXF_NUMERIC if it is not. */
exf_code exf_linalg_solve(double *a, double *b, int n, int m, exf_err *err) EXF_CHECKED;

/* ---- OpenBLAS computes every product on the thread that calls it, in buffers that it has from the start ---- */

/* Fails with EXF_NOSPACE where OpenBLAS could not map the one buffer that it takes while it is loaded (since 0.3.28). */
exf_code exf_blas_check_load_cpu(exf_err *err) EXF_CHECKED;

/* Lets OpenBLAS map the buffers that n threads need at once, 128 MiB of addresses each.  If a limit forbids that later, it
 * retries for ever and ignores signals.  Called before the first product.  EXF_NOSPACE: the limit forbids it now;
 * EXF_USAGE: n > 1 and OpenBLAS was built without threads and without locks. */
exf_code exf_blas_reserve_cpu(int n, exf_err *err) EXF_CHECKED;
#endif
