/* rope.h - rotary position embedding, half-rotation (NeoX) pairs (i, i + d/2).
 *
 * Angles as the reference computes them: inverse frequencies rounded to float32,
 * multiplied by the position in float32, then cosine and sine. */
#ifndef EXF_KERNELS_ROPE_H
#define EXF_KERNELS_ROPE_H

/* inv_freq[i] = theta^(-2i/d), i < d/2. */
void exf_rope_frequencies(float *inv_freq, int d, double theta);
/* cosine and sine [n_positions, d/2] for positions 0..n_positions-1. */
void exf_rope_table(float *cosine, float *sine, const float *inv_freq, int d, int n_positions);
/* Rotates the first d floats of each of n_heads heads (head_dim apart) of each of
 * n_tokens rows (ld apart), token t at position t, in place. */
void exf_rope_apply_cpu(float *x, int ld, int n_tokens, int n_heads, int head_dim, int d, const float *cosine, const float *sine);
#endif
