/* causal_conv_cpu.c - see causal_conv.h.  Tokens go from last to first, so that a
 * row is still unchanged when a later token needs it.  Channels go in blocks of
 * one size, so that inner loops have a known length. */
#include "kernels/recurrent/causal_conv.h"

#include "kernels/rows/simd.h"

enum { LANES = 32 };

static inline size_t padded(int channels)
{
    return ((size_t)channels + LANES - 1) / LANES * LANES;
}

size_t exf_causal_conv_workspace(int channels, int width)
{
    return padded(channels) * (size_t)width;
}

/* taps [width, padded channels], 0 after the last channel. */
static void transpose(float *taps, const float *w, int channels, int width)
{
    size_t ld = padded(channels);
    memset(taps, 0, ld * (size_t)width * sizeof *taps);
    for (size_t c = 0; c < (size_t)channels; c++)
        for (size_t j = 0; j < (size_t)width; j++) taps[j * ld + c] = w[c * (size_t)width + j];
}

/* sum += tap * x on n channels. */
EXF_SIMD_INLINE void add_tap(float *restrict sum, const float *restrict tap, const float *restrict x, int n)
{
    if (n == LANES)
        for (int c = 0; c < LANES; c++) sum[c] += tap[c] * x[c];
    else
        for (int c = 0; c < n; c++) sum[c] += tap[c] * x[c];
}

EXF_SIMD_CLONES void exf_causal_conv_silu_cpu(float *x, int ldx, const float *w, int n_tokens, int channels, int width,
                                              float *workspace)
{
    size_t ld = padded(channels);
    transpose(workspace, w, channels, width);
    for (int t = n_tokens - 1; t >= 0; t--) {
        float *row = x + (size_t)t * (size_t)ldx;
        int past = t < width - 1 ? t : width - 1; /* tokens before this one that the window holds */
        for (int first = 0; first < channels; first += LANES) {
            int n = channels - first < LANES ? channels - first : LANES;
            float sum[LANES] = {0};
            for (int back = past; back >= 0; back--)
                add_tap(sum, workspace + (size_t)(width - 1 - back) * ld + first, row + first - (size_t)back * (size_t)ldx, n);
            for (int c = 0; c < LANES; c++) sum[c] = sum[c] / (1.0f + exf_expf(-sum[c]));
            memcpy(row + first, sum, (size_t)n * sizeof *row);
        }
    }
}
