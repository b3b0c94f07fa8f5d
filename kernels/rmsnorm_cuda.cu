/* rmsnorm_cuda.cu - one block per row; see rmsnorm.h. */
#include "kernels/cuda_queue.cuh"
#include "kernels/cuda_reduce.cuh"
#include "kernels/rmsnorm.h"

static __global__ void rmsnorm(float *y, int ldy, const float *x, int ldx, const float *w, int n, double eps)
{
    const float *in = x + (size_t)blockIdx.x * ldx;
    float *out = y + (size_t)blockIdx.x * ldy;
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += (double)in[i] * (double)in[i];
    float scale = (float)(1.0 / sqrt(exf_block_sum(sum) / n + eps));
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = w ? w[i] * (in[i] * scale) : in[i] * scale;
}

void exf_rmsnorm_cuda(exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int n_rows, int n, double eps)
{
    if (n_rows == 0) return;
    EXF_LAUNCH(q, "rmsnorm", rmsnorm, n_rows, n <= 128 ? 32 : 256, 0, y, ldy, x, ldx, w, n, eps);
}

const void *exf_probe_kernel(void)
{
    return (const void *)rmsnorm;
}
