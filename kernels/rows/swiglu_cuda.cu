/* swiglu_cuda.cu - see swiglu.h. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/rows/swiglu.h"

static __global__ void swiglu(float *g, const float *u, size_t n, float limit)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = g[i], b = u[i];
    if (limit > 0) {
        a = fminf(a, limit);
        b = fminf(fmaxf(b, -limit), limit);
    }
    g[i] = a / (1.0f + expf(-a)) * b;
}

void exf_swiglu_cuda(exf_queue *q, float *g, const float *u, size_t n, float limit)
{
    if (n) EXF_LAUNCH(q, "swiglu", swiglu, exf_blocks(n, 256), 256, 0, g, u, n, limit);
}
