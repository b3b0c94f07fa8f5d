/* rmsnorm.h - y = w * x / sqrt(mean(x^2) + eps), row by row.
 *
 * rows of length n; x and y advance by ldx and ldy floats per row and may be the
 * same memory.  The mean is taken in double.  w NULL: no weight. */
#ifndef EXF_KERNELS_RMSNORM_H
#define EXF_KERNELS_RMSNORM_H
void exf_rmsnorm_cpu(float *y, int ldy, const float *x, int ldx, const float *w, int n_rows, int n, double eps);
#endif
