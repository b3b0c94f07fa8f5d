/* rounding_cuda.cu - see rounding.h. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_reduce.cuh"
#include "kernels/rows/rounding.h"

#include <cuda_bf16.h>

static __device__ inline uint32_t pack(float a, float b)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

/* Four elements a thread; n, ldx and ldo are multiples of 4. */
static __global__ void round_fours(uint16_t *out, int ldo, const float *x, int ldx, int n, size_t n_fours)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n_fours) return;
    size_t row = i / (unsigned)(n / 4), col = i % (unsigned)(n / 4) * 4;
    float4 v = *reinterpret_cast<const float4 *>(x + row * ldx + col);
    *reinterpret_cast<uint2 *>(out + row * ldo + col) = make_uint2(pack(v.x, v.y), pack(v.z, v.w));
}

static __global__ void round_ones(uint16_t *out, int ldo, const float *x, int ldx, int n, size_t n_all)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n_all) return;
    size_t row = i / (unsigned)n, col = i % (unsigned)n;
    out[row * ldo + col] = __bfloat16_as_ushort(__float2bfloat16_rn(x[row * ldx + col]));
}

void exf_round_rows_cuda(exf_queue *q, uint16_t *out, int ldo, const float *x, int ldx, int n_rows, int n)
{
    size_t all = (size_t)n_rows * (size_t)n;
    if (all == 0) return;
    if (((n | ldx | ldo) & 3) == 0 && ((uintptr_t)x & 15) == 0 && ((uintptr_t)out & 7) == 0)
        EXF_LAUNCH(q, "round_rows", round_fours, exf_blocks(all / 4, 256), 256, 0, out, ldo, x, ldx, n, all / 4);
    else
        EXF_LAUNCH(q, "round_rows", round_ones, exf_blocks(all, 256), 256, 0, out, ldo, x, ldx, n, all);
}

static __global__ void widen(float *out, const uint16_t *x, size_t n)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) out[i] = __uint_as_float((uint32_t)x[i] << 16);
}

void exf_widen_cuda(exf_queue *q, float *out, const uint16_t *x, size_t n)
{
    if (n) EXF_LAUNCH(q, "widen", widen, exf_blocks(n, 256), 256, 0, out, x, n);
}

/* A block per row of 4 n floats, QUADS of them a thread in registers: x is read once.  The
 * mean is taken in double. */
template <int QUADS>
static __global__ void __launch_bounds__(256)
    rmsnorm_rounded(uint2 *y, float4 *y32, const float4 *x, const float4 *w, int n, double eps)
{
    size_t row = (size_t)blockIdx.x * n;
    float4 v[QUADS];
    double sum = 0;
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        int i = threadIdx.x + k * 256;
        v[k] = i < n ? x[row + i] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < QUADS; k++)
        sum += ((double)v[k].x * v[k].x + (double)v[k].y * v[k].y) + ((double)v[k].z * v[k].z + (double)v[k].w * v[k].w);
    float scale = (float)(1.0 / sqrt(exf_block_sum(sum) / (4 * n) + eps));
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        int i = threadIdx.x + k * 256;
        if (i >= n) continue;
        float4 b = w[i],
               a = make_float4(b.x * (v[k].x * scale), b.y * (v[k].y * scale), b.z * (v[k].z * scale), b.w * (v[k].w * scale));
        if (y) y[row + i] = make_uint2(pack(a.x, a.y), pack(a.z, a.w));
        if (y32) y32[row + i] = a;
    }
}

static __global__ void rmsnorm_any(uint16_t *y, float *y32, const float *x, const float *w, int n, double eps)
{
    const float *in = x + (size_t)blockIdx.x * n;
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += (double)in[i] * (double)in[i];
    float scale = (float)(1.0 / sqrt(exf_block_sum(sum) / n + eps));
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float a = w[i] * (in[i] * scale);
        if (y) y[(size_t)blockIdx.x * n + i] = __bfloat16_as_ushort(__float2bfloat16_rn(a));
        if (y32) y32[(size_t)blockIdx.x * n + i] = a;
    }
}

void exf_rmsnorm_rounded_cuda(exf_queue *q, uint16_t *y, float *y32, const float *x, const float *w, int n_rows, int n, double eps)
{
    bool wide = n % 4 == 0 && (((uintptr_t)x | (uintptr_t)y32 | (uintptr_t)w) & 15) == 0 && ((uintptr_t)y & 7) == 0;
    uint2 *y2 = reinterpret_cast<uint2 *>(y);
    float4 *full = reinterpret_cast<float4 *>(y32);
    const float4 *x4 = reinterpret_cast<const float4 *>(x), *w4 = reinterpret_cast<const float4 *>(w);
    if (n_rows == 0) return;
    if (!wide || n > 8192)
        EXF_LAUNCH(q, "rmsnorm_rounded", rmsnorm_any, n_rows, 256, 0, y, y32, x, w, n, eps);
    else if (n <= 2048)
        EXF_LAUNCH(q, "rmsnorm_rounded", rmsnorm_rounded<2>, n_rows, 256, 0, y2, full, x4, w4, n / 4, eps);
    else if (n <= 4096)
        EXF_LAUNCH(q, "rmsnorm_rounded", rmsnorm_rounded<4>, n_rows, 256, 0, y2, full, x4, w4, n / 4, eps);
    else
        EXF_LAUNCH(q, "rmsnorm_rounded", rmsnorm_rounded<8>, n_rows, 256, 0, y2, full, x4, w4, n / 4, eps);
}

static __device__ __forceinline__ float gated(float x, float g)
{
    return g / (1.0f + expf(-g)) * x;
}

/* A warp per row of 4 n floats, at most QUADS of them a lane. */
template <int QUADS>
static __global__ void gate_heads_quads(uint2 *y, const float4 *x, const float4 *gate, const float4 *w, int n_rows, int n,
                                        double eps)
{
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    float4 a[QUADS], g[QUADS];
    double sum = 0;
    if (row >= n_rows) return;
    x += (size_t)row * n;
    gate += (size_t)row * n;
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        int i = lane + 32 * k;
        a[k] = i < n ? x[i] : make_float4(0, 0, 0, 0);
        g[k] = i < n ? gate[i] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < QUADS; k++)
        sum += ((double)a[k].x * a[k].x + (double)a[k].y * a[k].y) + ((double)a[k].z * a[k].z + (double)a[k].w * a[k].w);
    float scale = (float)(1.0 / sqrt(exf_warp_sum(sum) / (4 * n) + eps));
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        int i = lane + 32 * k;
        if (i >= n) continue;
        float4 b = w[i];
        y[(size_t)row * n + i] = make_uint2(pack(gated(b.x * (a[k].x * scale), g[k].x), gated(b.y * (a[k].y * scale), g[k].y)),
                                            pack(gated(b.z * (a[k].z * scale), g[k].z), gated(b.w * (a[k].w * scale), g[k].w)));
    }
}

/* Any row, one block each. */
static __global__ void gate_heads(uint16_t *y, const float *x, const float *gate, const float *w, int n, double eps)
{
    size_t at = (size_t)blockIdx.x * n;
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += (double)x[at + i] * (double)x[at + i];
    float scale = (float)(1.0 / sqrt(exf_block_sum(sum) / n + eps));
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        y[at + i] = __bfloat16_as_ushort(__float2bfloat16_rn(gated(w[i] * (x[at + i] * scale), gate[at + i])));
}

void exf_gate_heads_rounded_cuda(exf_queue *q, uint16_t *y, const float *x, const float *gate, const float *w, int n_rows, int n,
                                 double eps)
{
    bool wide = n % 4 == 0 && (((uintptr_t)x | (uintptr_t)gate | (uintptr_t)w) & 15) == 0 && ((uintptr_t)y & 7) == 0;
    const float4 *x4 = reinterpret_cast<const float4 *>(x), *gate4 = reinterpret_cast<const float4 *>(gate),
                 *w4 = reinterpret_cast<const float4 *>(w);
    if (n_rows == 0) return;
    if (wide && n <= 128)
        EXF_LAUNCH(q, "gate_heads", gate_heads_quads<1>, exf_blocks((size_t)n_rows, 8), 256, 0, reinterpret_cast<uint2 *>(y), x4,
                   gate4, w4, n_rows, n / 4, eps);
    else if (wide && n <= 512)
        EXF_LAUNCH(q, "gate_heads", gate_heads_quads<4>, exf_blocks((size_t)n_rows, 8), 256, 0, reinterpret_cast<uint2 *>(y), x4,
                   gate4, w4, n_rows, n / 4, eps);
    else
        EXF_LAUNCH(q, "gate_heads", gate_heads, n_rows, n <= 256 ? 64 : 256, 0, y, x, gate, w, n, eps);
}

static __global__ void rmsnorm_split(uint16_t *y, const float *x, const float *w, int n, double eps)
{
    const float *in = x + (size_t)blockIdx.x * n;
    uint16_t *out = y + (size_t)blockIdx.x * n * 2;
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += (double)in[i] * (double)in[i];
    float scale = (float)(1.0 / sqrt(exf_block_sum(sum) / n + eps));
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float v = w[i] * (in[i] * scale);
        __nv_bfloat16 high = __float2bfloat16_rn(v);
        out[i] = __bfloat16_as_ushort(high);
        out[n + i] = __bfloat16_as_ushort(__float2bfloat16_rn(v - __bfloat162float(high)));
    }
}

static __global__ void rmsnorm_split_fours(uint16_t *y, const float *x, const float *w, int n, double eps)
{
    const float4 *in = reinterpret_cast<const float4 *>(x + (size_t)blockIdx.x * n), *weight = reinterpret_cast<const float4 *>(w);
    uint2 *out = reinterpret_cast<uint2 *>(y + (size_t)blockIdx.x * n * 2);
    double sum = 0;
    for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
        float4 v = in[i];
        sum += (double)v.x * v.x + (double)v.y * v.y + (double)v.z * v.z + (double)v.w * v.w;
    }
    float scale = (float)(1.0 / sqrt(exf_block_sum(sum) / n + eps));
    for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
        float4 v = in[i], g = weight[i]; /* in the cache by now */
        float a[4] = {g.x * (v.x * scale), g.y * (v.y * scale), g.z * (v.z * scale), g.w * (v.w * scale)}, rest[4];
#pragma unroll
        for (int k = 0; k < 4; k++) rest[k] = a[k] - __bfloat162float(__float2bfloat16_rn(a[k]));
        out[i] = make_uint2(pack(a[0], a[1]), pack(a[2], a[3]));
        out[n / 4 + i] = make_uint2(pack(rest[0], rest[1]), pack(rest[2], rest[3]));
    }
}

void exf_rmsnorm_split_cuda(exf_queue *q, uint16_t *y, const float *x, const float *w, int n_rows, int n, double eps)
{
    if (n_rows == 0) return;
    if (n % 4)
        EXF_LAUNCH(q, "rmsnorm_split", rmsnorm_split, n_rows, 256, 0, y, x, w, n, eps);
    else
        EXF_LAUNCH(q, "rmsnorm_split", rmsnorm_split_fours, n_rows, 256, 0, y, x, w, n, eps);
}
