/* swiglu_cpu.c - see swiglu.h. */
#include "kernels/rows/swiglu.h"

#include "kernels/rows/simd.h"

static inline float gated(float g, float u)
{
    return g / (1.0f + exf_expf(-g)) * u;
}

EXF_SIMD_CLONES void exf_swiglu_cpu(float *g, const float *u, size_t n, float limit)
{
    if (limit > 0)
        for (size_t i = 0; i < n; i++) {
            float a = g[i] > limit ? limit : g[i], b = u[i] > limit ? limit : u[i] < -limit ? -limit : u[i];
            g[i] = gated(a, b);
        }
    else
        for (size_t i = 0; i < n; i++) g[i] = gated(g[i], u[i]);
}
