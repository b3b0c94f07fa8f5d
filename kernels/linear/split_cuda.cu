/* split_cuda.cu - see split.cuh. */
#include "kernels/linear/split.cuh"

#include <cuda_bf16.h>

/* The next term of *x, which becomes what is left of it. */
static __device__ inline uint16_t take_term(float *x)
{
    __nv_bfloat16 term = __float2bfloat16_rn(*x);
    *x -= __bfloat162float(term);
    return __bfloat16_as_ushort(term);
}

static __global__ void split_ones(uint16_t *out, size_t apart, const float *x, int ldx, int n, size_t n_all)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n_all) return;
    float v = x[i / (unsigned)n * ldx + i % (unsigned)n];
#pragma unroll
    for (int term = 0; term < EXF_SPLIT_TERMS; term++) out[term * apart + i] = take_term(&v);
}

/* Four elements a thread; n, ldx and apart are multiples of 4. */
static __global__ void split_fours(uint16_t *out, size_t apart, const float *x, int ldx, int n, size_t n_fours)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n_fours) return;
    size_t row = i / (unsigned)(n / 4), col = i % (unsigned)(n / 4) * 4;
    float4 v = *reinterpret_cast<const float4 *>(x + row * ldx + col);
#pragma unroll
    for (int term = 0; term < EXF_SPLIT_TERMS; term++) {
        ushort4 t;
        t.x = take_term(&v.x);
        t.y = take_term(&v.y);
        t.z = take_term(&v.z);
        t.w = take_term(&v.w);
        *reinterpret_cast<ushort4 *>(out + term * apart + 4 * i) = t;
    }
}

void exf_split_rows_cuda(exf_queue *q, uint16_t *out, size_t apart, const float *x, int ldx, int n_rows, int n)
{
    size_t all = (size_t)n_rows * (size_t)n;
    if (all == 0) return;
    if (((n | ldx) & 3) == 0 && apart % 4 == 0 && ((uintptr_t)x & 15) == 0 && ((uintptr_t)out & 7) == 0)
        EXF_LAUNCH(q, "split_rows", split_fours, exf_blocks(all / 4, 256), 256, 0, out, apart, x, ldx, n, all / 4);
    else
        EXF_LAUNCH(q, "split_rows", split_ones, exf_blocks(all, 256), 256, 0, out, apart, x, ldx, n, all);
}
