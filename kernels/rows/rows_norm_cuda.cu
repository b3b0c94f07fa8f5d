/* rows_norm_cuda.cu - norms, and the rounding of rows to bfloat16; see rows.h.
 *
 * All of these are bound by memory.  A row is read once and kept in registers, by a warp or a block, four floats at a time
 * where rows lie on 16-byte boundaries; the kernels for any row read it twice, the second time from the cache.  Bytes of n
 * elements: rmsnorm and layernorm 8 n, rounded 6 n (10 n with y32), split in two 8 n, gated heads 10 n, rounding 6 n, widening 6 n,
 * three terms 10 n.  The floor of 4096 rows of 2048 is 0.016 ms for 8 n at 4.2 TB/s; rmsnorm reaches 75 to 94 % of a
 * copy's rate (docs/performance.md). */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/rows/rows.h"

enum { THREADS = 256, HELD = 4 }; /* HELD: quads of a row that a thread keeps in registers */

/* ---- rmsnorm ---------------------------------------------------------------------------- */

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

/* Rows of 4 n floats on 16-byte boundaries, GROUP threads each: a row is read once. */
template <int GROUP>
static __global__ void __launch_bounds__(THREADS)
    rmsnorm_quads(float *y, int ldy, const float *x, int ldx, const float *w, int n_rows, int n, double eps)
{
    int row = blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP, at = threadIdx.x % GROUP;
    const float4 *in = reinterpret_cast<const float4 *>(x + (size_t)row * ldx), *weight = reinterpret_cast<const float4 *>(w);
    float4 *out = reinterpret_cast<float4 *>(y + (size_t)row * ldy), a[HELD];
    double sum = 0;
    bool valid = row < n_rows;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int i = at + k * GROUP;
        a[k] = valid && i < n ? in[i] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < HELD; k++) sum += exf_square_sum(a[k]);
    sum = GROUP == 32 ? exf_warp_sum(sum) : exf_block_sum(sum);
    float scale = (float)(1.0 / sqrt(sum / (4 * n) + eps));
#pragma unroll
    for (int k = 0; k < HELD; k++) {
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
    if (wide && n <= 32 * HELD * 4)
        EXF_LAUNCH(q, "rmsnorm", rmsnorm_quads<32>, exf_blocks((size_t)n_rows, THREADS / 32), THREADS, 0, y, ldy, x, ldx, w, n_rows,
                   n / 4, eps);
    else if (wide && n <= THREADS * HELD * 4)
        EXF_LAUNCH(q, "rmsnorm", rmsnorm_quads<THREADS>, n_rows, THREADS, 0, y, ldy, x, ldx, w, n_rows, n / 4, eps);
    else
        EXF_LAUNCH(q, "rmsnorm", rmsnorm, n_rows, n <= 128 ? 32 : THREADS, 0, y, ldy, x, ldx, w, n, eps);
}

/* ---- layernorm --------------------------------------------------------------------------- */

/* A block a row, which it reads three times, the later ones from the cache. */
static __global__ void layernorm(float *y, const float *w, const float *bias, int n, double eps)
{
    float *row = y + (size_t)blockIdx.x * n;
    double sum = 0, squares = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += (double)row[i];
    double mean = exf_block_sum(sum) / n;
    for (int i = threadIdx.x; i < n; i += blockDim.x) squares += ((double)row[i] - mean) * ((double)row[i] - mean);
    double scale = 1.0 / sqrt(exf_block_sum(squares) / n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) row[i] = w[i] * (float)(((double)row[i] - mean) * scale) + bias[i];
}

void exf_layernorm_cuda(exf_queue *q, float *y, const float *w, const float *bias, int n_rows, int n, double eps)
{
    if (n_rows > 0) EXF_LAUNCH(q, "layernorm", layernorm, n_rows, n <= 128 ? 32 : THREADS, 0, y, w, bias, n, eps);
}

/* ---- rmsnorm, rounded ---------------------------------------------------------------------- */

/* A block per row of 4 n floats, QUADS of them a thread in registers: x is read once.  The
 * mean is taken in double. */
template <int QUADS>
static __global__ void __launch_bounds__(THREADS)
    rmsnorm_rounded(uint2 *y, float4 *y32, const float4 *x, const float4 *w, int n, double eps)
{
    size_t row = (size_t)blockIdx.x * n;
    float4 v[QUADS];
    double sum = 0;
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        int i = threadIdx.x + k * THREADS;
        v[k] = i < n ? x[row + i] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < QUADS; k++) sum += exf_square_sum(v[k]);
    float scale = (float)(1.0 / sqrt(exf_block_sum(sum) / (4 * n) + eps));
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        int i = threadIdx.x + k * THREADS;
        if (i >= n) continue;
        float4 b = w[i],
               a = make_float4(b.x * (v[k].x * scale), b.y * (v[k].y * scale), b.z * (v[k].z * scale), b.w * (v[k].w * scale));
        if (y) y[row + i] = make_uint2(exf_narrow2(a.x, a.y), exf_narrow2(a.z, a.w));
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
        if (y) y[(size_t)blockIdx.x * n + i] = exf_narrow(a);
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
        EXF_LAUNCH(q, "rmsnorm_rounded", rmsnorm_any, n_rows, THREADS, 0, y, y32, x, w, n, eps);
    else if (n <= 2048)
        EXF_LAUNCH(q, "rmsnorm_rounded", rmsnorm_rounded<2>, n_rows, THREADS, 0, y2, full, x4, w4, n / 4, eps);
    else if (n <= 4096)
        EXF_LAUNCH(q, "rmsnorm_rounded", rmsnorm_rounded<4>, n_rows, THREADS, 0, y2, full, x4, w4, n / 4, eps);
    else
        EXF_LAUNCH(q, "rmsnorm_rounded", rmsnorm_rounded<8>, n_rows, THREADS, 0, y2, full, x4, w4, n / 4, eps);
}

/* Writes the sum of a block's row, if sums are wanted. */
static __device__ inline void write_square(float *squares, double squared)
{
    if (!squares) return;
    squared = exf_block_sum(squared);
    if (threadIdx.x == 0) squares[blockIdx.x] = (float)squared;
}

static __global__ void rmsnorm_split(uint16_t *y, float *squares, const float *x, const float *w, int n, double eps)
{
    const float *in = x + (size_t)blockIdx.x * n;
    uint16_t *out = y + (size_t)blockIdx.x * n * 2;
    double sum = 0, squared = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += (double)in[i] * (double)in[i];
    float scale = (float)(1.0 / sqrt(exf_block_sum(sum) / n + eps));
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float v = w[i] * (in[i] * scale);
        uint16_t high = exf_narrow(v);
        out[i] = high;
        out[n + i] = exf_narrow(v - exf_widen(high));
        squared += (double)v * (double)v;
    }
    write_square(squares, squared);
}

static __global__ void rmsnorm_split_fours(uint16_t *y, float *squares, const float *x, const float *w, int n, double eps)
{
    const float4 *in = reinterpret_cast<const float4 *>(x + (size_t)blockIdx.x * n), *weight = reinterpret_cast<const float4 *>(w);
    uint2 *out = reinterpret_cast<uint2 *>(y + (size_t)blockIdx.x * n * 2);
    double sum = 0, squared = 0;
    for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
        float4 v = in[i];
        sum += (double)v.x * v.x + (double)v.y * v.y + (double)v.z * v.z + (double)v.w * v.w;
    }
    float scale = (float)(1.0 / sqrt(exf_block_sum(sum) / n + eps));
    for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
        float4 v = in[i], g = weight[i]; /* in the cache by now */
        float a[4] = {g.x * (v.x * scale), g.y * (v.y * scale), g.z * (v.z * scale), g.w * (v.w * scale)}, rest[4];
#pragma unroll
        for (int k = 0; k < 4; k++) rest[k] = a[k] - exf_widen(exf_narrow(a[k]));
        out[i] = make_uint2(exf_narrow2(a[0], a[1]), exf_narrow2(a[2], a[3]));
        out[n / 4 + i] = make_uint2(exf_narrow2(rest[0], rest[1]), exf_narrow2(rest[2], rest[3]));
        if (squares) squared += exf_square_sum(make_float4(a[0], a[1], a[2], a[3]));
    }
    write_square(squares, squared);
}

void exf_rmsnorm_split_cuda(exf_queue *q, uint16_t *y, float *squares, const float *x, const float *w, int n_rows, int n,
                            double eps)
{
    bool wide = n % 4 == 0 && (((uintptr_t)x | (uintptr_t)w) & 15) == 0 && ((uintptr_t)y & 7) == 0;
    if (n_rows == 0) return;
    if (wide)
        EXF_LAUNCH(q, "rmsnorm_split", rmsnorm_split_fours, n_rows, THREADS, 0, y, squares, x, w, n, eps);
    else
        EXF_LAUNCH(q, "rmsnorm_split", rmsnorm_split, n_rows, THREADS, 0, y, squares, x, w, n, eps);
}

/* ---- heads of the delta rule: norm and gate, rounded ---------------------------------------- */

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
    for (int k = 0; k < QUADS; k++) sum += exf_square_sum(a[k]);
    float scale = (float)(1.0 / sqrt(exf_warp_sum(sum) / (4 * n) + eps));
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        int i = lane + 32 * k;
        if (i >= n) continue;
        float4 b = w[i];
        y[(size_t)row * n + i] =
            make_uint2(exf_narrow2(gated(b.x * (a[k].x * scale), g[k].x), gated(b.y * (a[k].y * scale), g[k].y)),
                       exf_narrow2(gated(b.z * (a[k].z * scale), g[k].z), gated(b.w * (a[k].w * scale), g[k].w)));
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
        y[at + i] = exf_narrow(gated(w[i] * (x[at + i] * scale), gate[at + i]));
}

void exf_gate_heads_rounded_cuda(exf_queue *q, uint16_t *y, const float *x, const float *gate, const float *w, int n_rows, int n,
                                 double eps)
{
    bool wide = n % 4 == 0 && (((uintptr_t)x | (uintptr_t)gate | (uintptr_t)w) & 15) == 0 && ((uintptr_t)y & 7) == 0;
    const float4 *x4 = reinterpret_cast<const float4 *>(x), *gate4 = reinterpret_cast<const float4 *>(gate),
                 *w4 = reinterpret_cast<const float4 *>(w);
    uint2 *y2 = reinterpret_cast<uint2 *>(y);
    if (n_rows == 0) return;
    if (wide && n <= 128)
        EXF_LAUNCH(q, "gate_heads", gate_heads_quads<1>, exf_blocks((size_t)n_rows, THREADS / 32), THREADS, 0, y2, x4, gate4, w4,
                   n_rows, n / 4, eps);
    else if (wide && n <= 512)
        EXF_LAUNCH(q, "gate_heads", gate_heads_quads<4>, exf_blocks((size_t)n_rows, THREADS / 32), THREADS, 0, y2, x4, gate4, w4,
                   n_rows, n / 4, eps);
    else
        EXF_LAUNCH(q, "gate_heads", gate_heads, n_rows, n <= 256 ? 64 : THREADS, 0, y, x, gate, w, n, eps);
}

/* ---- rounding and its terms ---------------------------------------------------------------- */

/* Four elements a thread; n, ldx and ldo are multiples of 4. */
static __global__ void round_fours(uint16_t *out, int ldo, const float *x, int ldx, int n, size_t n_fours)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n_fours) return;
    size_t row = i / (unsigned)(n / 4), col = i % (unsigned)(n / 4) * 4;
    float4 v = *reinterpret_cast<const float4 *>(x + row * ldx + col);
    *reinterpret_cast<uint2 *>(out + row * ldo + col) = make_uint2(exf_narrow2(v.x, v.y), exf_narrow2(v.z, v.w));
}

static __global__ void round_ones(uint16_t *out, int ldo, const float *x, int ldx, int n, size_t n_all)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n_all) return;
    size_t row = i / (unsigned)n, col = i % (unsigned)n;
    out[row * ldo + col] = exf_narrow(x[row * ldx + col]);
}

void exf_round_rows_cuda(exf_queue *q, uint16_t *out, int ldo, const float *x, int ldx, int n_rows, int n)
{
    size_t all = (size_t)n_rows * (size_t)n;
    if (all == 0) return;
    if (((n | ldx | ldo) & 3) == 0 && ((uintptr_t)x & 15) == 0 && ((uintptr_t)out & 7) == 0)
        EXF_LAUNCH(q, "round_rows", round_fours, exf_blocks(all / 4, THREADS), THREADS, 0, out, ldo, x, ldx, n, all / 4);
    else
        EXF_LAUNCH(q, "round_rows", round_ones, exf_blocks(all, THREADS), THREADS, 0, out, ldo, x, ldx, n, all);
}

static __global__ void widen(float *out, const uint16_t *x, size_t n)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) out[i] = exf_widen(x[i]);
}

void exf_widen_cuda(exf_queue *q, float *out, const uint16_t *x, size_t n)
{
    if (n) EXF_LAUNCH(q, "widen", widen, exf_blocks(n, THREADS), THREADS, 0, out, x, n);
}

/* The next term of *x, which becomes what is left of it. */
static __device__ inline uint16_t take_term(float *x)
{
    uint16_t term = exf_narrow(*x);
    *x -= exf_widen(term);
    return term;
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
        EXF_LAUNCH(q, "split_rows", split_fours, exf_blocks(all / 4, THREADS), THREADS, 0, out, apart, x, ldx, n, all / 4);
    else
        EXF_LAUNCH(q, "split_rows", split_ones, exf_blocks(all, THREADS), THREADS, 0, out, apart, x, ldx, n, all);
}
