/* rounding.h - rounds float32 activations to bfloat16 for the products that read them, on
 * devices that compute in bfloat16.  Rounding is to nearest, ties to even. */
#ifndef EXF_KERNELS_ROUNDING_H
#define EXF_KERNELS_ROUNDING_H
#include "kernels/linear/matrix.h"

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif
/* out [n_rows, n] (rows ldo apart) = x [n_rows, n] (rows ldx apart). */
void exf_round_rows_cuda(struct exf_queue *q, uint16_t *out, int ldo, const float *x, int ldx, int n_rows, int n);
/* n elements back to float32, exactly. */
void exf_widen_cuda(struct exf_queue *q, float *out, const uint16_t *x, size_t n);
/* y = round(w * x / sqrt(mean(x^2) + eps)) row by row (rmsnorm.h), n_rows rows of n;
 * y32, where not NULL, gets the same before rounding. */
void exf_rmsnorm_rounded_cuda(struct exf_queue *q, uint16_t *y, float *y32, const float *x, const float *w, int n_rows, int n,
                              double eps);
/* The same in two parts, [n_rows, 2 n]: the rounded value, then the rounded remainder:
 * together 16 significant bits, which a product with bfloat16 weights keeps. */
void exf_rmsnorm_split_cuda(struct exf_queue *q, uint16_t *y, const float *x, const float *w, int n_rows, int n, double eps);
/* y = round(silu(gate) * w * x / sqrt(mean(x^2) + eps)) row by row; y, x, gate [n_rows, n]. */
void exf_gate_heads_rounded_cuda(struct exf_queue *q, uint16_t *y, const float *x, const float *gate, const float *w, int n_rows,
                                 int n, double eps);
#ifdef __cplusplus
}
#endif
#endif
