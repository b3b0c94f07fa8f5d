/* swiglu_cpu.c - see swiglu.h. */
#include "kernels/swiglu.h"

#include "kernels/simd.h"

EXF_WIDE void exf_swiglu_cpu(float *g, const float *u, size_t n)
{
    for (size_t i = 0; i < n; i++) g[i] = g[i] / (1.0f + exf_expf(-g[i])) * u[i];
}
