/* divergence.h - how far one run's results are from another's: of logits the divergence, of outputs the squared error.
 *
 * KL(p || q) = sum_i p_i (log p_i - log q_i), natural logarithm.  Exponentials are float32 within 2 ulp, sums double in
 * eight lanes of fixed order; two equal rows give exactly 0.  top: index of the largest logit, ties to the lower. */
#ifndef EXF_KERNELS_DIVERGENCE_H
#define EXF_KERNELS_DIVERGENCE_H
#include "base/exact.h"
#include "kernels/operation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- rows of logits -------------------------------------------------------------------- */

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
    float *nll, *kl;     /* [R] -log q[next]; KL(original || this); these and same may be pinned memory of the host */
    unsigned char *same; /* [R] 1 where both have the same largest logit */
} exf_score_call;

void exf_score_rows_cuda(exf_queue *q, const exf_score_call *c);

/* ---- rows of outputs ---------------------------------------------------------------------
 *
 *   error_sq += sum over rows of ||b - a||^2        norm_sq += sum over rows of ||a||^2
 *
 * A row's squares are added up in double; each row's total is rounded to the grid of exf_exact and added as an integer, so
 * the sums do not depend on the order of rows. */

/* In GPU memory; all zero means no row was added. */
typedef struct {
    unsigned long long digit[2][6]; /* error_sq, norm_sq: digits of 2^32, not carried */
    unsigned long long out_of_range; /* rows whose squares no exf_exact can hold, not finite ones included */
} exf_output_errors;

/* Adds rows a and b [n_rows, n] to *sums.  At most 2^31 rows between two readings. */
void exf_output_errors_cuda(exf_queue *q, exf_output_errors *sums, const float *a, const float *b, int n_rows, int n);

/* Adds the sums of a copy in host memory to *error_sq and *norm_sq. */
void exf_output_errors_read(const exf_output_errors *sums, exf_exact *error_sq, exf_exact *norm_sq);

/* ---- energies of rows ----------------------------------------------------------------------
 *
 *   norm_sq += sum over rows of ||x||^2        inverse_sq += sum over rows of 1 / max(||x||^2, 2^-32)
 *
 * An error of a row counts relative to the row's own energy where a norm follows (docs/method.md, section 9).  Each row's
 * terms are rounded to the grid of exf_exact and added as integers. */
#define EXF_LEAST_ENERGY 0x1p-32

typedef struct {
    unsigned long long digit[2][6];  /* norm_sq, inverse_sq: digits of 2^32, not carried */
    unsigned long long out_of_range; /* rows whose energy no exf_exact can hold, not finite ones included */
} exf_row_energies;

/* Adds rows x [n_rows, n] to *sums, in GPU memory.  At most 2^31 rows between two readings. */
void exf_row_energies_cuda(exf_queue *q, exf_row_energies *sums, const float *x, int n_rows, int n);
/* Adds the sums of a copy in host memory. */
void exf_row_energies_read(const exf_row_energies *sums, exf_exact *norm_sq, exf_exact *inverse_sq);
/* Returns the squared norm of a float32 row: products and sums in double, eight lanes in fixed order.  On a GPU it is the
 * norm_sq of exf_row_energies. */
double exf_row_energy(const float *row, int n);
#ifdef __cplusplus
}
#endif
#endif
