/* rows.h - operations that gather, scatter and add rows of float32 matrices, row-major. */
#ifndef EXF_KERNELS_ROWS_H
#define EXF_KERNELS_ROWS_H
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

/* y += x, n floats. */
void exf_add_cpu(float *y, const float *x, size_t n);
/* out[i, :] = x[row[i], :], n_rows rows of width. */
void exf_gather_rows_cpu(float *out, const float *x, const int32_t *row, int n_rows, int width);
/* out[row[i], :] = x[i, :]; row[] must not repeat. */
void exf_scatter_rows_cpu(float *out, const float *x, const int32_t *row, int n_rows, int width);
/* Index of the first element that is not finite, -1 if all are. */
int64_t exf_first_not_finite_cpu(const float *x, size_t n);

void exf_add_cuda(struct exf_queue *q, float *y, const float *x, size_t n);
void exf_gather_rows_cuda(struct exf_queue *q, float *out, const float *x, const int32_t *row, int n_rows, int width);
/* Waits for the queue; EXF_DEVICE or EXF_NOSPACE: its first failure. */
exf_code exf_first_not_finite_cuda(struct exf_queue *q, const float *x, size_t n, int64_t *at, exf_err *err) EXF_CHECKED;
#ifdef __cplusplus
}
#endif
#endif
