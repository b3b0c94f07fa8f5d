/* rows_cpu.c - see rows.h. */
#include "kernels/rows/rows.h"

#include "kernels/rows/simd.h"

#include <math.h>

EXF_SIMD_CLONES void exf_add_cpu(exf_queue *q, float *y, const float *x, size_t n)
{
    (void)q;
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

void exf_gather_rows_cpu(exf_queue *q, float *out, const float *x, const int32_t *row, int n_rows, int width)
{
    (void)q;
    size_t w = (size_t)width;
    for (int i = 0; i < n_rows; i++) memcpy(out + (size_t)i * w, x + (size_t)row[i] * w, w * sizeof *out);
}

void exf_scatter_rows_cpu(float *out, const float *x, const int32_t *row, int n_rows, int width)
{
    size_t w = (size_t)width;
    for (int i = 0; i < n_rows; i++) memcpy(out + (size_t)row[i] * w, x + (size_t)i * w, w * sizeof *out);
}

EXF_SIMD_CLONES void exf_add_bias_cpu(exf_queue *q, float *y, const float *bias, int n_rows, int n)
{
    (void)q;
    for (int r = 0; r < n_rows; r++)
        for (int i = 0; i < n; i++) y[(size_t)r * (size_t)n + (size_t)i] += bias[i];
}

EXF_SIMD_CLONES void exf_clamp_cpu(exf_queue *q, float *y, size_t n, float limit)
{
    (void)q;
    for (size_t i = 0; i < n; i++) y[i] = y[i] > limit ? limit : y[i] < -limit ? -limit : y[i];
}

void exf_copy_columns_cpu(exf_queue *q, float *out, int ldo, const float *x, int ldx, int n_rows, int n)
{
    (void)q;
    for (int r = 0; r < n_rows; r++) memcpy(out + (size_t)r * (size_t)ldo, x + (size_t)r * (size_t)ldx, (size_t)n * sizeof *out);
}

void exf_repeat_columns_cpu(exf_queue *q, float *out, int ldo, int count, int step, const float *x, int ldx, int n_rows, int n)
{
    for (int c = 0; c < count; c++) exf_copy_columns_cpu(q, out + (size_t)c * (size_t)step, ldo, x, ldx, n_rows, n);
}

EXF_SIMD_CLONES void exf_sigmoid_gate_cpu(exf_queue *q, float *y, const float *gate, int n_rows, int d, int stride)
{
    (void)q;
    for (int r = 0; r < n_rows; r++)
        for (int i = 0; i < d; i++)
            y[(size_t)r * (size_t)d + (size_t)i] /= 1.0f + exf_expf(-gate[(size_t)r * (size_t)stride + (size_t)i]);
}

EXF_SIMD_CLONES void exf_rmsnorm_cpu(exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int n_rows, int n,
                                     double eps)
{
    (void)q;
    for (int r = 0; r < n_rows; r++) {
        const float *in = x + (size_t)r * (size_t)ldx;
        float *out = y + (size_t)r * (size_t)ldy;
        float scale = (float)(1.0 / sqrt(exf_dot(in, in, n) / n + eps));
        for (int i = 0; i < n; i++) out[i] = in[i] * scale;
        if (w)
            for (int i = 0; i < n; i++) out[i] *= w[i];
    }
}

EXF_SIMD_CLONES void exf_layernorm_cpu(exf_queue *q, float *y, const float *w, const float *bias, int n_rows, int n, double eps)
{
    (void)q;
    for (int r = 0; r < n_rows; r++, y += n) {
        double sum = 0, squares = 0;
        for (int i = 0; i < n; i++) sum += (double)y[i];
        double mean = sum / n;
        for (int i = 0; i < n; i++) squares += ((double)y[i] - mean) * ((double)y[i] - mean);
        double scale = 1.0 / sqrt(squares / n + eps);
        for (int i = 0; i < n; i++) y[i] = w[i] * (float)(((double)y[i] - mean) * scale) + bias[i];
    }
}

EXF_SIMD_CLONES void exf_scale_rows_cpu(exf_queue *q, float *y, const float *factor, int n_rows, int n)
{
    (void)q;
    for (int r = 0; r < n_rows; r++)
        for (int i = 0; i < n; i++) y[(size_t)r * (size_t)n + (size_t)i] *= factor[r];
}

static inline float gated(float g, float u)
{
    return g / (1.0f + exf_expf(-g)) * u;
}

EXF_SIMD_CLONES void exf_swiglu_cpu(exf_queue *q, float *g, const float *u, size_t n, float limit)
{
    (void)q;
    if (limit > 0)
        for (size_t i = 0; i < n; i++) {
            float a = g[i] > limit ? limit : g[i], b = u[i] > limit ? limit : u[i] < -limit ? -limit : u[i];
            g[i] = gated(a, b);
        }
    else
        for (size_t i = 0; i < n; i++) g[i] = gated(g[i], u[i]);
}

EXF_SIMD_CLONES void exf_swiglu_scaled_cpu(float *g, const float *u, size_t n, const exf_swiglu_form *form)
{
    float limit = form->limit > 0 ? form->limit : INFINITY, slope = form->slope, shift = form->shift;
    for (size_t i = 0; i < n; i++) {
        float a = g[i] > limit ? limit : g[i], b = u[i] > limit ? limit : u[i] < -limit ? -limit : u[i];
        g[i] = a / (1.0f + exf_expf(-slope * a)) * (b + shift);
    }
}

void exf_geglu_cpu(float *g, const float *u, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x = g[i], inner = 0.7978845608f * (x + 0.044715f * (x * x * x));
        g[i] = 0.5f * x * (1.0f + tanhf(inner)) * u[i];
    }
}

void exf_scale_cpu(exf_queue *q, float *y, size_t n, float factor, const float *by)
{
    (void)q;
    if (by) factor *= *by;
    for (size_t i = 0; i < n; i++) y[i] *= factor;
}

void exf_soft_cap_cpu(exf_queue *q, float *y, size_t n, float cap)
{
    (void)q;
    for (size_t i = 0; i < n; i++) y[i] = cap * tanhf(y[i] / cap);
}

void exf_switch_weights_cpu(exf_queue *q, float *out, const float *x, const float *w, int n_rows, int n)
{
    (void)q;
    for (int r = 0; r < n_rows; r++) out[r] = (float)(1 / (1 + exp(-exf_dot(x + (size_t)r * (size_t)n, w, n))));
}
