/* delta_rule.h - the gated delta rule over one sequence, and what comes before it: the causal convolution, the gates, the
 * norms of q and k.
 *
 * A value head h has a state S [key_dim, value_dim], 0 before the sequence, and uses key head
 * h / (n_value_heads / n_key_heads).  For every token in order:
 *
 *   S <- decay S
 *   d  = beta (v - S^T k)       the update of the value for key k
 *   S <- S + k d^T
 *   o  = S^T q                  from the updated state
 *
 * float32: sums over the key dimension in order of its index, the decay taken out of the first sum, products and sums
 * rounded one by one.  |error| of a sum is at most key_dim * 2^-24 * sum |S||k|.
 *
 * The CUDA backend takes 64 tokens at a time (delta_chunks.cu): the same sums in another order, products to 21 bits in F32
 * mode, operands rounded to float16 (11 bits, relative error 2^-12 each; the state stays float32) in BF16 mode.  With
 * normalised k and q the distance to the reference, ||difference|| / ||out||, stays below 1e-5 in F32 and 2e-3 in BF16. */
#ifndef EXF_KERNELS_DELTA_RULE_H
#define EXF_KERNELS_DELTA_RULE_H
#include "kernels/operation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Causal depthwise convolution with SiLU:
 *
 *   x[t, c] <- silu(sum over j < width of w[c, j] x[t - width + 1 + j, c])
 *
 * x [T, channels], rows ldx floats apart, replaced in place; before the sequence x is 0, and w[c, width - 1] meets the token
 * itself.  w [channels, width] as stored.  float32, taps added from the oldest token to the newest, those before the
 * sequence left out; silu(y) = y / (1 + e^-y).  Workspaces are in floats. */
typedef size_t exf_causal_conv_workspace_op(int channels, int width);
exf_causal_conv_workspace_op exf_causal_conv_workspace_cpu, exf_causal_conv_workspace_cuda;
typedef void exf_causal_conv_silu_op(exf_queue *q, float *x, int ldx, const float *w, int n_tokens, int channels, int width,
                                     float *workspace);
exf_causal_conv_silu_op exf_causal_conv_silu_cpu, exf_causal_conv_silu_cuda;

typedef struct {
    int n_tokens, n_key_heads, n_value_heads; /* n_value_heads is a multiple of n_key_heads */
    int key_dim, value_dim;
    int ldq, ldk, ldv, ldo; /* floats between the rows of two tokens */
} exf_delta_shape;

/* a and b [T, n_heads] become decay = exp(-exp(a_log) softplus(a + dt_bias)) and
 * beta = sigmoid(b); computed in double, rounded once. */
typedef void exf_delta_gates_op(exf_queue *q, float *a, float *b, const float *a_log, const float *dt_bias, int n_tokens,
                                int n_heads);
exf_delta_gates_op exf_delta_gates_cpu, exf_delta_gates_cuda;

/* Every head of x [T, n_heads, d], rows ldx apart: x <- scale x / sqrt(sum x^2 + eps),
 * the sum in double. */
typedef void exf_l2norm_heads_op(exf_queue *q, float *x, int ldx, int n_tokens, int n_heads, int d, double eps, double scale);
exf_l2norm_heads_op exf_l2norm_heads_cpu, exf_l2norm_heads_cuda;

typedef size_t exf_delta_rule_workspace_op(const exf_delta_shape *s);
exf_delta_rule_workspace_op exf_delta_rule_workspace_cpu, exf_delta_rule_workspace_cuda;
/* query and k [T, n_key_heads, key_dim], normalised and scaled; v and out [T, n_value_heads, value_dim]; decay and beta
 * [T, n_value_heads], dense. */
typedef void exf_delta_rule_op(exf_queue *q, float *out, const float *query, const float *k, const float *v, const float *decay,
                               const float *beta, const exf_delta_shape *s, float *workspace);
exf_delta_rule_op exf_delta_rule_cpu, exf_delta_rule_cuda;

/* conv_delta_rule of the GPU's operations (backend.h). */
size_t exf_conv_delta_rule_workspace_cuda(const exf_delta_shape *s, int width); /* floats */
void exf_conv_delta_rule_cuda(exf_queue *q, float *out, float *qkv, const float *taps, int width, const float *decay,
                              const float *beta, const exf_delta_shape *s, double eps, float *workspace);
#ifdef __cplusplus
}
#endif
#endif
