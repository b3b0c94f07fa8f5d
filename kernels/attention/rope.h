/* rope.h - rotary position embedding.
 *
 * Half-rotation (NeoX) pairs (i, i + d/2), interleaved (GPT-J) pairs (2i, 2i + 1):
 *   y_a = x_a cos - x_b sin,   y_b = x_b cos + x_a sin
 * Angles as the reference computes them: inverse frequencies rounded to float32,
 * multiplied by the position in float32, then cosine and sine. */
#ifndef EXF_KERNELS_ROPE_H
#define EXF_KERNELS_ROPE_H

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

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
 * apart) of each of n_tokens rows (ld apart); row t at position t * step. */
typedef struct {
    int n_tokens, n_heads, head_dim, ld;
    int d, offset, step;
    int interleaved, inverse; /* inverse: the rotation is undone (sin -> -sin) */
} exf_rope_shape;
/* In place. */
void exf_rope_apply_cpu(float *x, const exf_rope_shape *s, const float *cosine, const float *sine);
void exf_rope_apply_cuda(struct exf_queue *q, float *x, const exf_rope_shape *s, const float *cosine, const float *sine);
#ifdef __cplusplus
}
#endif
#endif
