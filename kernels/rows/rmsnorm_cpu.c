/* rmsnorm_cpu.c - see rmsnorm.h. */
#include "kernels/rows/rmsnorm.h"

#include "kernels/rows/simd.h"

#include <math.h>
#include <stddef.h>

EXF_SIMD_CLONES void exf_rmsnorm_cpu(float *y, int ldy, const float *x, int ldx, const float *w, int n_rows, int n, double eps)
{
    for (int r = 0; r < n_rows; r++) {
        const float *in = x + (size_t)r * (size_t)ldx;
        float *out = y + (size_t)r * (size_t)ldy;
        float scale = (float)(1.0 / sqrt(exf_dot(in, in, n) / n + eps));
        for (int i = 0; i < n; i++) out[i] = in[i] * scale;
        if (w)
            for (int i = 0; i < n; i++) out[i] *= w[i];
    }
}
