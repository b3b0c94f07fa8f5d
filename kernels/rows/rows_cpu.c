/* rows_cpu.c - see rows.h. */
#include "kernels/rows/rows.h"

#include "kernels/rows/simd.h"

#include <math.h>

EXF_SIMD_CLONES void exf_add_cpu(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

void exf_gather_rows_cpu(float *out, const float *x, const int32_t *row, int n_rows, int width)
{
    size_t w = (size_t)width;
    for (int i = 0; i < n_rows; i++) memcpy(out + (size_t)i * w, x + (size_t)row[i] * w, w * sizeof *out);
}

void exf_scatter_rows_cpu(float *out, const float *x, const int32_t *row, int n_rows, int width)
{
    size_t w = (size_t)width;
    for (int i = 0; i < n_rows; i++) memcpy(out + (size_t)row[i] * w, x + (size_t)i * w, w * sizeof *out);
}

EXF_SIMD_CLONES void exf_combine_cpu(float *y, const float *x, const float *weights, int n_tokens, int top_k, int width)
{
    size_t w = (size_t)width;
    for (int t = 0; t < n_tokens; t++) {
        float *out = y + (size_t)t * w;
        memset(out, 0, w * sizeof *out);
        for (int k = 0; k < top_k; k++) {
            size_t slot = (size_t)t * (size_t)top_k + (size_t)k;
            const float *in = x + slot * w;
            for (size_t j = 0; j < w; j++) out[j] += weights[slot] * in[j];
        }
    }
}

int64_t exf_first_not_finite_cpu(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return (int64_t)i;
    return -1;
}
