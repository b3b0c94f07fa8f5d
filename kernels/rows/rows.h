/* rows.h - operations that gather, scatter and add rows of float32 matrices, row-major. */
#ifndef EXF_KERNELS_ROWS_H
#define EXF_KERNELS_ROWS_H
#include <stddef.h>
#include <stdint.h>

/* y += x, n floats. */
void exf_add_cpu(float *y, const float *x, size_t n);
/* out[i, :] = x[row[i], :], n_rows rows of width. */
void exf_gather_rows_cpu(float *out, const float *x, const int32_t *row, int n_rows, int width);
/* out[row[i], :] = x[i, :]; row[] must not repeat. */
void exf_scatter_rows_cpu(float *out, const float *x, const int32_t *row, int n_rows, int width);
/* Index of the first element that is not finite, -1 if all are. */
int64_t exf_first_not_finite_cpu(const float *x, size_t n);
#endif
