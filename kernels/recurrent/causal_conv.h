/* causal_conv.h - causal depthwise convolution with SiLU over one sequence.
 *
 *   x[t, c] <- silu(sum over j < width of w[c, j] x[t - width + 1 + j, c])
 *
 * x [T, channels], rows ldx floats apart, replaced in place; before the sequence
 * x is 0, and w[c, width - 1] meets the token itself.  w [channels, width] as
 * stored.  float32, taps added from the oldest token to the newest, those before
 * the sequence left out; silu(y) = y / (1 + e^-y). */
#ifndef EXF_KERNELS_CAUSAL_CONV_H
#define EXF_KERNELS_CAUSAL_CONV_H
#include <stddef.h>

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

/* Floats of workspace. */
size_t exf_causal_conv_workspace(int channels, int width);
void exf_causal_conv_silu_cpu(float *x, int ldx, const float *w, int n_tokens, int channels, int width, float *workspace);
size_t exf_causal_conv_workspace_cuda(int channels, int width); /* floats */
void exf_causal_conv_silu_cuda(struct exf_queue *q, float *x, int ldx, const float *w, int n_tokens, int channels, int width,
                               float *workspace);
#ifdef __cplusplus
}
#endif
#endif
