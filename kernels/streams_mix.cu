/* streams_mix.cu - see streams_mix.cuh.  A block has 16 tokens; its warps go side by side
 * through the S H floats of a token, 16 at a time, and multiply them with fn on tensor
 * cores (tf32.cuh, EXACT).  Which of the 16 is the summed index of which product is all
 * the same as long as x and fn agree, so both are loaded in the order that memory has.
 * Products of 256 elements are added in float32, these sums in double: |error| <=
 * 2^-16 of the sum of |fn x|, and the same bits in whatever block a token is. */
#include "kernels/cuda_reduce.cuh"
#include "kernels/streams_mix.cuh"
#include "kernels/tf32.cuh"

enum { TOKENS = 16, WARPS = 8, THREADS = 32 * WARPS, OUTPUTS = 24, FLUSH = 16 };

int exf_streams_mix_fits(const float *x, const exf_streams_shape *s)
{
    int width = s->streams * s->width;
    return exf_hopper_code() && s->width % 4 == 0 && s->width >= s->streams && width % 16 == 0 && exf_wide(x, width) && exf_wide(s->fn, width);
}

#ifdef EXF_HOPPER
/* Of one warp: three products of 16 x 8, squares of rows g and g + 8. */
struct sums {
    double mix[3][4], square[2];
};

static __device__ __forceinline__ float norm2(float4 a)
{
    return (a.x * a.x + a.y * a.y) + (a.z * a.z + a.w * a.w);
}

/* d += 16 columns of two rows of x times those of three rows of fn. */
static __device__ __forceinline__ void step(float (&d)[3][4], float4 a, float4 b, const float4 (&f)[3])
{
    float as[2][4] = {{a.x, b.x, a.y, b.y}, {a.z, b.z, a.w, b.w}};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        exf_parts<4, true> x;
#pragma unroll
        for (int i = 0; i < 4; i++) x.set(i, as[half][i]);
#pragma unroll
        for (int n = 0; n < 3; n++) {
            exf_parts<2, true> y;
            y.set(0, half ? f[n].z : f[n].x);
            y.set(1, half ? f[n].w : f[n].y);
            exf_multiply<true>(d[n], x, y);
        }
    }
}

/* n times 16 columns, WARPS * 16 apart, from quad i on. */
template <int N> static __device__ __forceinline__ void add_columns(sums &s, const float4 *const (&row)[2], const float4 *const (&fn)[3], int i, int n)
{
    float d[3][4] = {}, square[2] = {};
#pragma unroll 4
    for (int k = 0; k < (N ? N : n); k++, i += WARPS * 4) {
        float4 a = row[0][i], b = row[1][i], f[3] = {fn[0][i], fn[1][i], fn[2][i]};
        square[0] += norm2(a);
        square[1] += norm2(b);
        step(d, a, b, f);
    }
#pragma unroll
    for (int m = 0; m < 3; m++)
#pragma unroll
        for (int e = 0; e < 4; e++) s.mix[m][e] += (double)d[m][e];
    s.square[0] += (double)square[0];
    s.square[1] += (double)square[1];
}

/* This warp's share; row[0], row[1]: x of tokens g and g + 8, fn[n]: row 8 n + g. */
static __device__ __forceinline__ void add_up(sums &s, const float4 *const (&row)[2], const float4 *const (&fn)[3], int quads)
{
    int i = threadIdx.x / 32 * 4 + threadIdx.x % 4, left = (quads - threadIdx.x / 32 * 4 + WARPS * 4 - 4) / (WARPS * 4);
    for (; left >= FLUSH; left -= FLUSH, i += FLUSH * WARPS * 4) add_columns<FLUSH>(s, row, fn, i, FLUSH);
    if (left > 0) add_columns<0>(s, row, fn, i, left);
}

static __device__ double sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

/* Every token's C: rows by exp and their sum, then lines in turn; S threads a token. */
static __device__ void sinkhorn(double *mix, int n_mix, const exf_streams_shape &s)
{
    int S = s.streams, token = threadIdx.x / S, line = threadIdx.x % S;
    bool mine = token < TOKENS;
    double *c = mix + token * n_mix + 2 * S;
    for (int pass = 0; pass < 2 * max(s.iterations, 1); pass++) {
        int step = pass % 2 ? S : 1, at = pass % 2 ? line : line * S; /* odd: columns */
        double sum = pass ? s.eps : 0, top = -INFINITY;
        if (mine && pass == 0) {
            for (int k = 0; k < S; k++) top = fmax(top, c[at + k]);
            for (int k = 0; k < S; k++) c[at + k] = exp(c[at + k] - top);
        }
        if (mine) {
            for (int k = 0; k < S; k++) sum += c[at + k * step];
            sum = 1 / sum;
            for (int k = 0; k < S; k++) c[at + k * step] = c[at + k * step] * sum + (pass ? 0 : s.eps);
        }
        __syncthreads();
    }
}

/* Dot products to coefficients, all 16 tokens. */
static __device__ void coefficients(double *mix, int n_mix, const exf_streams_shape &s)
{
    int S = s.streams;
    for (int i = threadIdx.x; i < TOKENS * n_mix; i += THREADS) {
        int m = i % n_mix, kind = m < S ? 0 : m < 2 * S ? 1 : 2;
        double z = mix[i] * (double)s.scale[kind] + (double)s.base[m];
        mix[i] = kind == 0 ? sigmoid(z) + s.eps : kind == 1 ? 2 * sigmoid(z) : z;
    }
    __syncthreads();
    if (n_mix > S) sinkhorn(mix, n_mix, s);
}
#endif

/* Shared: doubles [WARPS, TOKENS, OUTPUTS + 1], then [TOKENS, n_mix].  Grid: tokens / 16. */
static __global__ void __launch_bounds__(THREADS) mix_tokens(float *mixing, int ld, const float *x, exf_streams_shape s,
                                                                    int n_mix)
{
#ifdef EXF_HOPPER
    extern __shared__ double part[];
    double *mix = part + WARPS * TOKENS * (OUTPUTS + 1);
    int width = s.streams * s.width, first = blockIdx.x * TOKENS, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    int last = s.n_tokens - 1;
    const float4 *row[2], *fn[3];
    for (int r = 0; r < 2; r++) row[r] = reinterpret_cast<const float4 *>(x + (size_t)min(first + g + 8 * r, last) * width);
    for (int from = 0; from < n_mix; from += OUTPUTS) {
        sums t = {};
        for (int n = 0; n < 3; n++) fn[n] = reinterpret_cast<const float4 *>(s.fn + (size_t)min(from + 8 * n + g, n_mix - 1) * width);
        add_up(t, row, fn, width / 4);
        for (int r = 0; r < 2; r++) {
            double square = t.square[r] + __shfl_xor_sync(0xffffffffu, t.square[r], 1);
            square += __shfl_xor_sync(0xffffffffu, square, 2);
            double *to = part + (warp * TOKENS + g + 8 * r) * (OUTPUTS + 1);
            for (int n = 0; n < 3; n++)
                for (int e = 0; e < 2; e++) to[8 * n + 2 * c + e] = t.mix[n][2 * r + e];
            if (c == 0) to[OUTPUTS] = square;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < TOKENS * OUTPUTS; i += THREADS) {
            int token = i / OUTPUTS, m = i % OUTPUTS;
            double dot = 0, square = 0;
            for (int w = 0; w < WARPS; w++) {
                dot += part[(w * TOKENS + token) * (OUTPUTS + 1) + m];
                square += part[(w * TOKENS + token) * (OUTPUTS + 1) + OUTPUTS];
            }
            if (from + m < n_mix) mix[token * n_mix + from + m] = dot / sqrt(square / width + s.norm_eps);
        }
        __syncthreads();
    }
    coefficients(mix, n_mix, s);
    for (int i = threadIdx.x; i < TOKENS * n_mix; i += THREADS)
        if (first + i / n_mix <= last) mixing[(size_t)(first + i / n_mix) * ld + i % n_mix] = (float)mix[i];
#endif
}

/* u = sum over streams of pre_j x_j, pre at mixing in rows of ld, which may be u's own.
 * Grid: tokens. */
static __global__ void gather(float *u, const float *mixing, int ld, const float *x, int streams, int quads)
{
    __shared__ float pre[EXF_STREAMS_MAX];
    const float4 *row = reinterpret_cast<const float4 *>(x) + (size_t)blockIdx.x * streams * quads;
    float4 *out = reinterpret_cast<float4 *>(u) + (size_t)blockIdx.x * quads;
    if (threadIdx.x < (unsigned)streams) pre[threadIdx.x] = mixing[(size_t)blockIdx.x * ld + threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (int j = 0; j < streams; j++) {
            float4 a = row[(size_t)j * quads + i];
            sum = make_float4(sum.x + pre[j] * a.x, sum.y + pre[j] * a.y, sum.z + pre[j] * a.z, sum.w + pre[j] * a.w);
        }
        out[i] = sum;
    }
}

void exf_streams_mix(exf_queue *q, float *u, float *mixing, const float *x, const exf_streams_shape *s, int n_mix)
{
    int bytes = (WARPS * TOKENS * (OUTPUTS + 1) + TOKENS * n_mix) * (int)sizeof(double), ld = mixing ? n_mix : s->width;
    if (!mixing) mixing = u;
    if (q->err.code != EXF_OK || s->n_tokens == 0) return;
    exf_cuda_note(q, cudaFuncSetAttribute(mix_tokens, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "streams");
    EXF_LAUNCH(q, "streams", mix_tokens, (s->n_tokens + TOKENS - 1) / TOKENS, THREADS, bytes, mixing, ld, x, *s, n_mix);
    EXF_LAUNCH(q, "streams", gather, s->n_tokens, 256, 0, u, mixing, ld, x, s->streams, s->width / 4);
}
