/* compressed_entries_cuda.cu - pools windows of tokens into compressed entries; see compressed.h.
 *
 * A warp has 32 times LANES channels of an entry; if an entry has many slots, eight warps share them.
 *
 * Bytes: kv and gate read (the gate twice, the second time from the cache), entries written; 1 entry of 4 tokens,
 * overlapping, d 512 and 4096 tokens: 36 MB, 9 us at 4.2 TB/s.  It reaches 2301 GB/s with 1 of 4 and 1636 with 1 of 128, 54
 * and 39 % of a copy (docs/performance.md). */
#include "kernels/attention/compressed.h"
#include "kernels/device/cuda_queue.cuh"

enum { WARPS = 8, MANY = 32, HELD = 16 };

/* The slots of an entry: those of its own window, then those of the window before.  LANES channels from c on. */
template <int LANES> struct entry {
    const float *kv, *gate, *ape;
    int ratio, ld, n_slots;
    size_t to_before; /* floats back from a slot to the same slot in the window before */
    int own;          /* floats from a channel of the window before to the own window's */

    __device__ entry(const float *all_kv, const float *all_gate, const float *all_ape, const exf_compressor_shape &s, int w, int c)
    {
        ratio = s.ratio;
        ld = s.overlap ? 2 * s.d : s.d;
        own = s.overlap ? s.d : 0;
        to_before = (size_t)ratio * ld;
        n_slots = s.overlap && w > 0 ? 2 * ratio : ratio;
        kv = all_kv + w * to_before + c;
        gate = all_gate + w * to_before + c;
        ape = all_ape + c;
    }
    __device__ static void read(float (&x)[LANES], const float *p)
    {
        if (LANES == 4) {
            float4 a = *reinterpret_cast<const float4 *>(p);
            x[0] = a.x, x[1 % LANES] = a.y, x[2 % LANES] = a.z, x[3 % LANES] = a.w;
        } else {
            x[0] = *p;
        }
    }
    __device__ const float *at(const float *p, int slot) const
    {
        return slot < ratio ? p + (size_t)slot * ld + own : p + (size_t)(slot - ratio) * ld - to_before;
    }
    __device__ void logits(float (&x)[LANES], int slot) const
    {
        float b[LANES];
        read(x, at(gate, slot));
        read(b, slot < ratio ? ape + (size_t)slot * ld + own : ape + (size_t)(slot - ratio) * ld);
#pragma unroll
        for (int l = 0; l < LANES; l++) x[l] += b[l];
    }
    __device__ void values(float (&x)[LANES], int slot) const
    {
        read(x, at(kv, slot));
    }
};

/* Reduces over the warps of a block, in their order, one channel per thread. */
static __device__ float max_over_warps(float x, float (*exchange)[32])
{
    exchange[threadIdx.y][threadIdx.x] = x;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) x = fmaxf(x, exchange[i][threadIdx.x]);
    __syncthreads();
    return x;
}

static __device__ double sum_over_warps(double x, double (*exchange)[32])
{
    double sum = 0;
    exchange[threadIdx.y][threadIdx.x] = x;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) sum += exchange[i][threadIdx.x];
    __syncthreads();
    return sum;
}

/* Pools entries.  Threads: 32 times LANES channels, WARPS entries or, SHARED, parts of one. */
template <int LANES, bool SHARED>
static __global__ void compress(float *out, const float *kv, const float *gate, const float *ape, exf_compressor_shape s)
{
    __shared__ float tops[WARPS][32];
    __shared__ double sums[WARPS][32];
    int w = SHARED ? blockIdx.x : blockIdx.x * WARPS + threadIdx.y, c = (blockIdx.y * 32 + threadIdx.x) * LANES;
    bool valid = w < s.n_entries && c < s.d;
    entry<LANES> e(kv, gate, ape, s, w, c);
    float top[LANES], x[LANES], v[LANES];
    double sum[LANES] = {}, weighed[LANES] = {};
    int n = valid ? e.n_slots : 0, from = SHARED ? threadIdx.y : 0, step = SHARED ? WARPS : 1;
#pragma unroll
    for (int l = 0; l < LANES; l++) top[l] = -INFINITY;
#pragma unroll 4
    for (int i = from; i < n; i += step) {
        e.logits(x, i);
#pragma unroll
        for (int l = 0; l < LANES; l++) top[l] = fmaxf(top[l], x[l]);
    }
#pragma unroll
    for (int l = 0; l < LANES; l++)
        if (SHARED) top[l] = max_over_warps(top[l], tops);
#pragma unroll 4
    for (int i = from; i < n; i += step) {
        e.logits(x, i);
        e.values(v, i);
#pragma unroll
        for (int l = 0; l < LANES; l++) {
            double weight = (double)expf(x[l] - top[l]);
            sum[l] += weight;
            weighed[l] += weight * (double)v[l];
        }
    }
#pragma unroll
    for (int l = 0; l < LANES; l++) {
        if (SHARED) {
            sum[l] = sum_over_warps(sum[l], sums);
            weighed[l] = sum_over_warps(weighed[l], sums);
        }
        if (valid && (!SHARED || threadIdx.y == 0)) out[(size_t)w * s.d + c + l] = (float)(weighed[l] / sum[l]);
    }
}

/* Pools entries of at most HELD slots a warp: logits and values are read once and kept in registers.
 * Threads: 32 channels, WARPS parts of an entry. */
static __global__ void compress_held(float *out, const float *kv, const float *gate, const float *ape, exf_compressor_shape s)
{
    __shared__ float tops[WARPS][32];
    __shared__ double sums[WARPS][32];
    int w = blockIdx.x, c = blockIdx.y * 32 + threadIdx.x;
    entry<1> e(kv, gate, ape, s, w, min(c, s.d - 1));
    float top = -INFINITY, x[HELD][1], v[HELD][1];
    double sum = 0, weighed = 0;
    int n = c < s.d ? e.n_slots : 0;
#pragma unroll
    for (int k = 0; k < HELD; k++) { /* all loads start before one is used */
        int slot = max(min((int)threadIdx.y + k * WARPS, n - 1), 0);
        e.logits(x[k], slot);
        e.values(v[k], slot);
    }
#pragma unroll
    for (int k = 0; k < HELD; k++)
        if ((int)threadIdx.y + k * WARPS < n) top = fmaxf(top, x[k][0]);
    top = max_over_warps(top, tops);
#pragma unroll
    for (int k = 0; k < HELD; k++)
        if ((int)threadIdx.y + k * WARPS < n) {
            double weight = (double)expf(x[k][0] - top);
            sum += weight;
            weighed += weight * (double)v[k][0];
        }
    sum = sum_over_warps(sum, sums);
    weighed = sum_over_warps(weighed, sums);
    if (c < s.d && threadIdx.y == 0) out[(size_t)w * s.d + c] = (float)(weighed / sum);
}

void exf_compressor_cuda(exf_queue *q, float *out, const float *kv, const float *gate, const float *ape,
                         const exf_compressor_shape *s)
{
    bool wide = exf_aligned16(kv, s->d) && exf_aligned16(gate, s->d) && exf_aligned16(ape, s->d);
    unsigned columns = (unsigned)(s->d + 31) / 32, entries = (unsigned)s->n_entries;
    if (s->n_entries == 0 || s->d == 0) return;
    if (s->ratio >= MANY && s->ratio * (s->overlap ? 2 : 1) <= HELD * WARPS)
        EXF_LAUNCH(q, "compressor", compress_held, dim3(entries, columns), dim3(32, WARPS), 0, out, kv, gate, ape, *s);
    else if (s->ratio >= MANY)
        EXF_LAUNCH(q, "compressor", (compress<1, true>), dim3(entries, columns), dim3(32, WARPS), 0, out, kv, gate, ape, *s);
    else if (wide)
        EXF_LAUNCH(q, "compressor", (compress<4, false>), dim3((entries + WARPS - 1) / WARPS, (columns + 3) / 4), dim3(32, WARPS),
                   0, out, kv, gate, ape, *s);
    else
        EXF_LAUNCH(q, "compressor", (compress<1, false>), dim3((entries + WARPS - 1) / WARPS, columns), dim3(32, WARPS), 0, out, kv,
                   gate, ape, *s);
}
