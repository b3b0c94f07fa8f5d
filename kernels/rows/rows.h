/* rows.h - operations along the rows of row-major matrices: copies, sums, biases, gates, norms, SwiGLU; and on a GPU the
 * rounding of float32 rows to bfloat16 for the products that read them. */
#ifndef EXF_KERNELS_ROWS_H
#define EXF_KERNELS_ROWS_H
#include "base/err.h"
#include "kernels/operation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y += x, n floats. */
typedef void exf_add_op(exf_queue *q, float *y, const float *x, size_t n);
exf_add_op exf_add_cpu, exf_add_cuda;
/* out[i, :] = x[row[i], :], n_rows rows of width. */
typedef void exf_gather_rows_op(exf_queue *q, float *out, const float *x, const int32_t *row, int n_rows, int width);
exf_gather_rows_op exf_gather_rows_cpu, exf_gather_rows_cuda;
/* out[row[i], :] = x[i, :]; row[] must not repeat. */
void exf_scatter_rows_cpu(float *out, const float *x, const int32_t *row, int n_rows, int width);
/* y[r, :] += bias, n_rows rows of n. */
typedef void exf_add_bias_op(exf_queue *q, float *y, const float *bias, int n_rows, int n);
exf_add_bias_op exf_add_bias_cpu, exf_add_bias_cuda;
/* y is cut at limit and at -limit, n floats; what is no number stays. */
typedef void exf_clamp_op(exf_queue *q, float *y, size_t n, float limit);
exf_clamp_op exf_clamp_cpu, exf_clamp_cuda;
/* out[r, 0..n) = x[r, 0..n): rows ldo and ldx floats apart. */
typedef void exf_copy_columns_op(exf_queue *q, float *out, int ldo, const float *x, int ldx, int n_rows, int n);
exf_copy_columns_op exf_copy_columns_cpu, exf_copy_columns_cuda;
/* out[r, c step + i] = x[r, i] for every c < count and i < n: a row's part copied to several places. */
typedef void exf_repeat_columns_op(exf_queue *q, float *out, int ldo, int count, int step, const float *x, int ldx, int n_rows,
                                   int n);
exf_repeat_columns_op exf_repeat_columns_cpu, exf_repeat_columns_cuda;
/* y[r, i] *= sigmoid(gate[r * stride + i]), n_rows rows of d. */
typedef void exf_sigmoid_gate_op(exf_queue *q, float *y, const float *gate, int n_rows, int d, int stride);
exf_sigmoid_gate_op exf_sigmoid_gate_cpu, exf_sigmoid_gate_cuda;

/* y = w * x / sqrt(mean(x^2) + eps), row by row.  Rows have n floats; x and y advance by ldx and ldy floats per row and may
 * be the same memory.  The mean is taken in double.  w NULL: no weight. */
typedef void exf_rmsnorm_op(exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int n_rows, int n,
                            double eps);
exf_rmsnorm_op exf_rmsnorm_cpu, exf_rmsnorm_cuda;

/* y = w * (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) + bias, row by row, in place: n_rows rows of n.  Means in double. */
typedef void exf_layernorm_op(exf_queue *q, float *y, const float *w, const float *bias, int n_rows, int n, double eps);
exf_layernorm_op exf_layernorm_cpu, exf_layernorm_cuda;
/* y[r, :] *= factor[r], n_rows rows of n. */
typedef void exf_scale_rows_op(exf_queue *q, float *y, const float *factor, int n_rows, int n);
exf_scale_rows_op exf_scale_rows_cpu, exf_scale_rows_cuda;

/* g <- silu(g) * u, n floats; silu(x) = x / (1 + e^-x).  With limit > 0, g is first cut at limit and u at +-limit. */
typedef void exf_swiglu_op(exf_queue *q, float *g, const float *u, size_t n, float limit);
exf_swiglu_op exf_swiglu_cpu, exf_swiglu_cuda;
/* The scaled form: g <- g / (1 + e^(-slope g)) * (u + shift), cut before that in the same way.  slope 1 and shift 0 are the
 * above. */
typedef struct {
    float limit, slope, shift;
} exf_swiglu_form;
void exf_swiglu_scaled_cpu(float *g, const float *u, size_t n, const exf_swiglu_form *form);

/* g <- gelu(g) * u, n floats; gelu(x) = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). */
void exf_geglu_cpu(float *g, const float *u, size_t n);
/* y *= factor, and by *by, which lies in the backend's memory, where it is not NULL; n floats, one product of float32 each. */
typedef void exf_scale_op(exf_queue *q, float *y, size_t n, float factor, const float *by);
exf_scale_op exf_scale_cpu, exf_scale_cuda;
/* y = cap tanh(y / cap), n floats. */
typedef void exf_soft_cap_op(exf_queue *q, float *y, size_t n, float cap);
exf_soft_cap_op exf_soft_cap_cpu, exf_soft_cap_cuda;

/* out[t] = sigmoid(x[t, :] . w), x [n_rows, n]; the inner product in double. */
typedef void exf_switch_weights_op(exf_queue *q, float *out, const float *x, const float *w, int n_rows, int n);
exf_switch_weights_op exf_switch_weights_cpu, exf_switch_weights_cuda;

/* Index of the first element that is not finite, -1 if all are; waits for the queue.  EXF_DEVICE or EXF_NOSPACE: the queue's
 * first failure. */
exf_code exf_first_not_finite_cuda(exf_queue *q, const float *x, size_t n, int64_t *at, exf_err *err) EXF_CHECKED;

/* ---- on a GPU alone; queued without waiting on the host ------------------------------- */

/* *least (the device's) becomes min(*least, base + i) over all i whose x[i] is not finite. */
void exf_watch_finite_cuda(exf_queue *q, uint64_t *least, const float *x, size_t n, uint64_t base);
/* out [n, streams, width] = row tokens[t] of table [vocab, width], in every stream. */
void exf_embed_cuda(exf_queue *q, float *out, exf_matrix table, const int32_t *tokens, size_t n_tokens, int width, int streams);

/* Rounding is to nearest, ties to even.  out [n_rows, n] (rows ldo apart) = x [n_rows, n] (rows ldx apart). */
void exf_round_rows_cuda(exf_queue *q, uint16_t *out, int ldo, const float *x, int ldx, int n_rows, int n);
/* n elements back to float32, exactly. */
void exf_widen_cuda(exf_queue *q, float *out, const uint16_t *x, size_t n);
/* y = round(rmsnorm(x)), n_rows rows of n; y32, where not NULL, gets the same before rounding. */
void exf_rmsnorm_rounded_cuda(exf_queue *q, uint16_t *y, float *y32, const float *x, const float *w, int n_rows, int n, double eps);
/* The same in two parts, [n_rows, 2 n]: the rounded value, then the rounded remainder: together 16 significant bits,
 * which a product with bfloat16 weights keeps.  squares [n_rows], where not NULL, gets the rows' sums of squares before
 * rounding. */
void exf_rmsnorm_split_cuda(exf_queue *q, uint16_t *y, float *squares, const float *x, const float *w, int n_rows, int n,
                            double eps);
/* y = round(silu(gate) * rmsnorm(x)) row by row; y, x, gate [n_rows, n]. */
void exf_gate_heads_rounded_cuda(exf_queue *q, uint16_t *y, const float *x, const float *gate, const float *w, int n_rows, int n,
                                 double eps);

/* A float32 number as the sum of three bfloat16 terms, so that tensor cores multiply it by bfloat16 weights without loss:
 *
 *   term 0 = round(x), term 1 = round(x - term 0), term 2 = round(x - term 0 - term 1)
 *
 * The differences are exact: 3 x 8 bits hold float32's 24, so the terms add up to x wherever x's last bit is at least
 * 2^-133, the smallest bfloat16; below that the sum is off by at most 2^-134.  A number that is not finite, or that rounds
 * to infinity (3.39e38 and more), makes every product that reads it not finite. */
enum { EXF_SPLIT_TERMS = 3 };
/* Term i of x [n_rows, n] (rows ldx apart) to out + i * apart elements, rows n apart. */
void exf_split_rows_cuda(exf_queue *q, uint16_t *out, size_t apart, const float *x, int ldx, int n_rows, int n);
#ifdef __cplusplus
}
#endif
#endif
