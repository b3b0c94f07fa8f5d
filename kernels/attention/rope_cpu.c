/* rope_cpu.c - see rope.h. */
#include "kernels/attention/rope.h"

#include "kernels/rows/simd.h"

#include <math.h>
#include <stddef.h>

static double frequency(int i, int d, double theta)
{
    return pow(theta, -2.0 * i / d);
}

void exf_rope_frequencies(float *inv_freq, int d, double theta)
{
    for (int i = 0; i < d / 2; i++) inv_freq[i] = (float)frequency(i, d, theta);
}

/* Returns the dimension whose wave turns n times within the original length. */
static double turning_dimension(double n, int d, double theta, double original_length)
{
    const double two_pi = 6.283185307179586;
    return d * log(original_length / (two_pi * n)) / (2 * log(theta));
}

void exf_rope_yarn_frequencies(float *inv_freq, int d, double theta, const exf_yarn *y)
{
    double low = turning_dimension(y->beta_fast, d, theta, y->original_length);
    double high = turning_dimension(y->beta_slow, d, theta, y->original_length);
    if (y->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = low < 0 ? 0 : low;
    high = high > d - 1 ? d - 1 : high;
    if (low == high) high += 0.001;
    for (int i = 0; i < d / 2; i++) {
        double f = frequency(i, d, theta), ramp = (i - low) / (high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        inv_freq[i] = (float)(f / y->factor * ramp + f * (1 - ramp));
    }
}

void exf_rope_table(float *cosine, float *sine, const float *inv_freq, int d, int n_positions, double amplitude)
{
    int half = d / 2;
    for (int t = 0; t < n_positions; t++)
        for (int i = 0; i < half; i++) {
            float angle = (float)t * inv_freq[i];
            cosine[(size_t)t * (size_t)half + (size_t)i] = (float)(cos((double)angle) * amplitude);
            sine[(size_t)t * (size_t)half + (size_t)i] = (float)(sin((double)angle) * amplitude);
        }
}

/* Rotates the pairs of a head; partners are `far` floats apart, pairs `next` floats. */
static inline void rotate(float *x, int half, int far, int next, float sign, const float *c, const float *s)
{
    for (int i = 0; i < half; i++) {
        float a = x[i * next], b = x[i * next + far], sine = sign * s[i];
        x[i * next] = a * c[i] - b * sine;
        x[i * next + far] = b * c[i] + a * sine;
    }
}

EXF_SIMD_CLONES void exf_rope_apply_cpu(float *x, const exf_rope_shape *s, const float *cosine, const float *sine)
{
    int half = s->d / 2;
    float sign = s->inverse ? -1.0f : 1.0f;
    for (int t = 0; t < s->n_tokens; t++) {
        size_t at = (size_t)t * (size_t)s->step * (size_t)half;
        for (int h = 0; h < s->n_heads; h++) {
            float *head = x + (size_t)t * (size_t)s->ld + (size_t)h * (size_t)s->head_dim + s->offset;
            if (s->interleaved)
                rotate(head, half, 1, 2, sign, cosine + at, sine + at);
            else
                rotate(head, half, half, 1, sign, cosine + at, sine + at);
        }
    }
}
