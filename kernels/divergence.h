/* divergence.h - one row of logits as log-probabilities, and how far another row is
 * from it: KL(p || q) = sum_i p_i (log p_i - log q_i), natural logarithm.
 *
 * Exponentials are float32 within 2 ulp, sums double in eight lanes of fixed order; two
 * equal rows give exactly 0.  top: index of the largest logit, ties to the lower. */
#ifndef EXF_KERNELS_DIVERGENCE_H
#define EXF_KERNELS_DIVERGENCE_H

/* log_p, p [n] from logits [n]. */
void exf_log_softmax_cpu(float *log_p, float *p, const float *logits, int n, int *top);
/* KL of logits' softmax from log_p, p; *log_sum is such that log q_i = logits_i - log_sum. */
double exf_divergence_cpu(const float *log_p, const float *p, const float *logits, int n, double *log_sum, int *top);
#endif
