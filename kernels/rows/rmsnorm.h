/* rmsnorm.h - y = w * x / sqrt(mean(x^2) + eps), row by row.
 *
 * rows of length n; x and y advance by ldx and ldy floats per row and may be the
 * same memory.  The mean is taken in double.  w NULL: no weight. */
#ifndef EXF_KERNELS_RMSNORM_H
#define EXF_KERNELS_RMSNORM_H

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

void exf_rmsnorm_cpu(float *y, int ldy, const float *x, int ldx, const float *w, int n_rows, int n, double eps);
void exf_rmsnorm_cuda(struct exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int n_rows, int n,
                      double eps);
/* A kernel of this build: asking for its attributes tells whether the GPU has code that it can run. */
const void *exf_capability_kernel(void);
#ifdef __cplusplus
}
#endif
#endif
