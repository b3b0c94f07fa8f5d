/* rmsnorm_cuda.cu - one warp or one block per row; see rmsnorm.h. */
#include "kernels/device/cuda_reduce.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/rows/rmsnorm.h"

enum { THREADS = 256, QUADS = 4 }; /* that a thread holds */

/* Any row, one block each. */
static __global__ void rmsnorm(float *y, int ldy, const float *x, int ldx, const float *w, int n, double eps)
{
    const float *in = x + (size_t)blockIdx.x * ldx;
    float *out = y + (size_t)blockIdx.x * ldy;
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += (double)in[i] * (double)in[i];
    float scale = (float)(1.0 / sqrt(exf_block_sum(sum) / n + eps));
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = w ? w[i] * (in[i] * scale) : in[i] * scale;
}

static __device__ double square(float4 a)
{
    return ((double)a.x * a.x + (double)a.y * a.y) + ((double)a.z * a.z + (double)a.w * a.w);
}

/* Rows of 4 n floats on 16-byte boundaries, GROUP threads each: a row is read once. */
template <int GROUP>
static __global__ void __launch_bounds__(THREADS)
    rmsnorm_quads(float *y, int ldy, const float *x, int ldx, const float *w, int n_rows, int n, double eps)
{
    int row = blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP, at = threadIdx.x % GROUP;
    const float4 *in = reinterpret_cast<const float4 *>(x + (size_t)row * ldx), *weight = reinterpret_cast<const float4 *>(w);
    float4 *out = reinterpret_cast<float4 *>(y + (size_t)row * ldy), a[QUADS];
    double sum = 0;
    bool valid = row < n_rows;
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        int i = at + k * GROUP;
        a[k] = valid && i < n ? in[i] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < QUADS; k++) sum += square(a[k]);
    sum = GROUP == 32 ? exf_warp_sum(sum) : exf_block_sum(sum);
    float scale = (float)(1.0 / sqrt(sum / (4 * n) + eps));
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        int i = at + k * GROUP;
        if (!valid || i >= n) continue;
        float4 b = w ? weight[i] : make_float4(1, 1, 1, 1);
        out[i] = make_float4(b.x * (a[k].x * scale), b.y * (a[k].y * scale), b.z * (a[k].z * scale), b.w * (a[k].w * scale));
    }
}

void exf_rmsnorm_cuda(exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int n_rows, int n, double eps)
{
    bool wide = n % 4 == 0 && exf_aligned16(x, ldx) && exf_aligned16(y, ldy) && exf_aligned16(w, 0);
    if (n_rows == 0) return;
    if (wide && n <= 32 * QUADS * 4)
        EXF_LAUNCH(q, "rmsnorm", rmsnorm_quads<32>, exf_blocks((size_t)n_rows, THREADS / 32), THREADS, 0, y, ldy, x, ldx, w, n_rows,
                   n / 4, eps);
    else if (wide && n <= THREADS * QUADS * 4)
        EXF_LAUNCH(q, "rmsnorm", rmsnorm_quads<THREADS>, n_rows, THREADS, 0, y, ldy, x, ldx, w, n_rows, n / 4, eps);
    else
        EXF_LAUNCH(q, "rmsnorm", rmsnorm, n_rows, n <= 128 ? 32 : THREADS, 0, y, ldy, x, ldx, w, n, eps);
}

const void *exf_capability_kernel(void)
{
    return (const void *)rmsnorm;
}
