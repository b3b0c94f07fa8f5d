/* divergence.h - computes log-probabilities of a row of logits, and the divergence of another
 * row from it: KL(p || q) = sum_i p_i (log p_i - log q_i), natural logarithm.
 *
 * Exponentials are float32 within 2 ulp, sums double in eight lanes of fixed order; two
 * equal rows give exactly 0.  top: index of the largest logit, ties to the lower. */
#ifndef EXF_KERNELS_DIVERGENCE_H
#define EXF_KERNELS_DIVERGENCE_H
#include <stdint.h>

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

/* log_p, p [n] from logits [n]. */
void exf_log_softmax_cpu(float *log_p, float *p, const float *logits, int n, int *top);
/* KL of logits' softmax from log_p, p; *log_sum is such that log q_i = logits_i - log_sum. */
double exf_divergence_cpu(const float *log_p, const float *p, const float *logits, int n, double *log_sum, int *top);

/* ---- rows of logits in device memory -------------------------------------------
 * first 1: rows of the original, which fill log_p and top; nll is theirs, kl 0, same 1.
 * first 0: other rows for the same tokens, compared with them.  The same arithmetic, sums
 * double over the threads of a block in fixed order.  A row with a NaN has nll NaN. */
typedef struct {
    const float *logits; /* [R, n] */
    const int32_t *next; /* [R] the token that came, in [0, n) */
    int n_rows, n, first;
    float *log_p;        /* [R, n] */
    int32_t *top;        /* [R] */
    float *nll, *kl;     /* [R] -log q[next]; KL(original || this) */
    int32_t *same;       /* [R] 1 where both have the same largest logit */
} exf_score_call;

void exf_score_rows_cuda(struct exf_queue *q, const exf_score_call *c);
#ifdef __cplusplus
}
#endif
#endif
