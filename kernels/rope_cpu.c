/* rope_cpu.c - see rope.h. */
#include "kernels/rope.h"

#include "kernels/simd.h"

#include <math.h>
#include <stddef.h>

void exf_rope_frequencies(float *inv_freq, int d, double theta)
{
    for (int i = 0; i < d / 2; i++) inv_freq[i] = (float)pow(theta, -2.0 * i / d);
}

void exf_rope_table(float *cosine, float *sine, const float *inv_freq, int d, int n_positions)
{
    int half = d / 2;
    for (int t = 0; t < n_positions; t++)
        for (int i = 0; i < half; i++) {
            float angle = (float)t * inv_freq[i];
            cosine[(size_t)t * (size_t)half + (size_t)i] = (float)cos((double)angle);
            sine[(size_t)t * (size_t)half + (size_t)i] = (float)sin((double)angle);
        }
}

static inline void rotate(float *x, int half, const float *c, const float *s)
{
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * c[i] - b * s[i];
        x[i + half] = b * c[i] + a * s[i];
    }
}

EXF_WIDE void exf_rope_apply_cpu(float *x, int ld, int n_tokens, int n_heads, int head_dim, int d, const float *cosine, const float *sine)
{
    int half = d / 2;
    for (int t = 0; t < n_tokens; t++)
        for (int h = 0; h < n_heads; h++)
            rotate(x + (size_t)t * (size_t)ld + (size_t)h * (size_t)head_dim, half, cosine + (size_t)t * (size_t)half,
                   sine + (size_t)t * (size_t)half);
}
