/* gate.h - small element-wise operations around projections, row-major float32. */
#ifndef EXF_KERNELS_GATE_H
#define EXF_KERNELS_GATE_H

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

/* y[r, :] += bias, n_rows rows of n. */
void exf_add_bias_cpu(float *y, const float *bias, int n_rows, int n);
/* out[r, 0..n) = x[r, 0..n): rows ldo and ldx floats apart. */
void exf_copy_columns_cpu(float *out, int ldo, const float *x, int ldx, int n_rows, int n);
/* out[r, c step + i] = x[r, i] for every c < count and i < n: a row's part copied to several places. */
void exf_repeat_columns_cpu(float *out, int ldo, int count, int step, const float *x, int ldx, int n_rows, int n);
/* y[r, i] *= sigmoid(gate[r * stride + i]), n_rows rows of d. */
void exf_sigmoid_gate_cpu(float *y, const float *gate, int n_rows, int d, int stride);

void exf_add_bias_cuda(struct exf_queue *q, float *y, const float *bias, int n_rows, int n);
void exf_copy_columns_cuda(struct exf_queue *q, float *out, int ldo, const float *x, int ldx, int n_rows, int n);
void exf_repeat_columns_cuda(struct exf_queue *q, float *out, int ldo, int count, int step, const float *x, int ldx, int n_rows,
                             int n);
void exf_sigmoid_gate_cuda(struct exf_queue *q, float *y, const float *gate, int n_rows, int d, int stride);
#ifdef __cplusplus
}
#endif
#endif
