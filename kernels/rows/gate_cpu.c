/* gate_cpu.c - see gate.h. */
#include "kernels/rows/gate.h"

#include "kernels/rows/simd.h"

#include <math.h>
#include <stddef.h>

EXF_SIMD_CLONES void exf_add_bias_cpu(float *y, const float *bias, int n_rows, int n)
{
    for (int r = 0; r < n_rows; r++)
        for (int i = 0; i < n; i++) y[(size_t)r * (size_t)n + (size_t)i] += bias[i];
}

void exf_copy_columns_cpu(float *out, int ldo, const float *x, int ldx, int n_rows, int n)
{
    for (int r = 0; r < n_rows; r++) memcpy(out + (size_t)r * (size_t)ldo, x + (size_t)r * (size_t)ldx, (size_t)n * sizeof *out);
}

void exf_repeat_columns_cpu(float *out, int ldo, int count, int step, const float *x, int ldx, int n_rows, int n)
{
    for (int c = 0; c < count; c++) exf_copy_columns_cpu(out + (size_t)c * (size_t)step, ldo, x, ldx, n_rows, n);
}

EXF_SIMD_CLONES void exf_sigmoid_gate_cpu(float *y, const float *gate, int n_rows, int d, int stride)
{
    for (int r = 0; r < n_rows; r++)
        for (int i = 0; i < d; i++)
            y[(size_t)r * (size_t)d + (size_t)i] /= 1.0f + exf_expf(-gate[(size_t)r * (size_t)stride + (size_t)i]);
}
