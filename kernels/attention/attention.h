/* attention.h - causal softmax attention over one sequence, grouped queries; and the rotation of queries and keys.
 *
 * query [T, n_heads, d], k [T, n_kv, d], v [T, n_kv, dv], out [T, n_heads, dv], each
 * with rows its own ld elements apart, floats, or bfloat16 in an out of rounded_out.  Query head h uses key-value head
 * h / (n_heads / n_kv).  score = scale * q.k; token t sees tokens 0..t, with a window those
 * of the last `window`, itself among them; with chosen bytes those of them whose byte in its row is not 0.  A sink is a score of a
 * head that enters the sum of the softmax and has no value.
 * float32; scale is positive.  The T x T scores are never held: the CPU holds
 * EXF_ATTENTION_ROWS rows of them, the CUDA backend tiles in registers.
 *
 * CUDA, F32 mode: float32 throughout, without tensor cores, in another order (attention_f32.cuh).
 * BF16 mode, on tensor cores: q, k, v and the weights are rounded to float16, which these take at
 * bfloat16's speed with three bits more (relative error 2^-11; beyond 65504 they become infinite,
 * and the output is found not to be finite); products are added in float32, weights in float32
 * before they are rounded.  With delta the largest error of a score, at most
 * 2^-10 scale sum |q_i k_i|, |error| <= (2 delta + 2^-10) max |v|.  Heads above 256, to 576 and 512,
 * are rounded by wgmma; by mma.sync they are in float32, as in F32 mode.  Windows, sinks and
 * chosen tokens: as in F32 mode. */

#ifndef EXF_KERNELS_ATTENTION_H
#define EXF_KERNELS_ATTENTION_H
#include "kernels/operation.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EXF_ATTENTION_ROWS = 128 };

typedef struct {
    int n_tokens, n_heads, n_kv;
    int d, dv;
    int ldq, ldk, ldv, ldo;
    float scale;
    int window;         /* 0: all tokens before */
    const float *sinks; /* [n_heads], in the backend's memory; NULL: none */
    const unsigned char *chosen; /* [T, T], in the backend's memory; NULL: all.  A row chooses at least one token that it may see */
    int rounded_out;    /* 1: out is uint16_t, bfloat16 of what it would be, ties to even; CUDA in BF16 mode only */
} exf_attention_shape;

/* Floats of workspace. */
typedef size_t exf_attention_workspace_op(const exf_attention_shape *s);
exf_attention_workspace_op exf_attention_workspace_cpu, exf_attention_workspace_cuda;
typedef void exf_attention_op(exf_queue *q, void *out, const float *query, const float *k, const float *v,
                              const exf_attention_shape *s, float *workspace);
exf_attention_op exf_attention_cpu, exf_attention_cuda;

/* ---- rotary position embedding -----------------------------------------------------------
 * Half-rotation (NeoX) pairs (i, i + d/2), interleaved (GPT-J) pairs (2i, 2i + 1):
 *   y_a = x_a cos - x_b sin,   y_b = x_b cos + x_a sin
 * Angles as the reference computes them: inverse frequencies rounded to float32, multiplied by the position in float32, then
 * cosine and sine. */

/* inv_freq[i] = theta^(-2i/d), i < d/2. */
void exf_rope_frequencies(float *inv_freq, int d, double theta);

/* YaRN (static): with D(n) = d ln(original / (2 pi n)) / (2 ln theta), low = D(beta_fast),
 * high = D(beta_slow), rounded outwards when truncate, kept within [0, d-1], and
 * ramp_i = clamp((i - low) / (high - low), 0, 1):
 *   inv_freq[i] = f_i / factor * ramp_i + f_i (1 - ramp_i),   f_i = theta^(-2i/d) */
typedef struct {
    double factor, beta_fast, beta_slow, original_length;
    int truncate;
} exf_yarn;
void exf_rope_yarn_frequencies(float *inv_freq, int d, double theta, const exf_yarn *y);

/* cosine and sine [n_positions, d/2] of positions 0..n_positions-1, times amplitude. */
void exf_rope_table(float *cosine, float *sine, const float *inv_freq, int d, int n_positions, double amplitude);

/* The rows that are rotated: d floats from `offset` of each of n_heads heads (head_dim
 * apart) of each of n_tokens rows (ld apart); row t at position t * step.  Before that the first `normed` floats of every
 * head become rmsnorm (rows/rows.h) of themselves, with the weights `norm` and eps: the bits are those of rmsnorm in place
 * and a rotation after it, for one pass over memory. */
typedef struct {
    int n_tokens, n_heads, head_dim, ld;
    int d, offset, step;
    int interleaved, inverse; /* inverse: the rotation is undone (sin -> -sin) */
    int normed;               /* 0: no norm */
    const float *norm;        /* [normed], in the backend's memory; NULL: ones */
    double eps;
} exf_rope_shape;
/* In place. */
typedef void exf_rope_apply_op(exf_queue *q, float *x, const exf_rope_shape *s, const float *cosine, const float *sine);
exf_rope_apply_op exf_rope_apply_cpu, exf_rope_apply_cuda;

#ifdef __cplusplus
}
#endif
#endif
