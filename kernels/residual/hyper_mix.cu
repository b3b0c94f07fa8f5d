/* hyper_mix.cu - see hyper_connections_internal.cuh.  A block has 32 tokens; its warps go side by side
 * through the S H floats of a token, 16 at a time, and multiply them with fn on tensor
 * cores (tf32.cuh, EXACT).  Which of the 16 is the summed index of which product is all
 * the same as long as x and fn agree, so both are loaded in the order that memory has.
 * Products of 256 elements are added in float32, these sums in double: |error| <=
 * 2^-16 of the sum of |fn x|, and the same bits in whatever block a token is. */
#include "kernels/device/cuda_reduce.cuh"
#include "kernels/residual/hyper_connections_internal.cuh"
#include "kernels/device/tf32.cuh"

enum { TOKENS = 32, STRIPS = TOKENS / 16, WARPS = 16, THREADS = 32 * WARPS, OUTPUTS = 24, LD = OUTPUTS + 1, FLUSH = 16, RUN = 4 };

int exf_hyper_mix_fits(const float *x, const exf_hyper_shape *s)
{
    int width = s->streams * s->width;
    return exf_hopper_code() && s->width % 4 == 0 && s->width >= s->streams && width % 16 == 0 && exf_aligned16(x, width) &&
           exf_aligned16(s->fn, width);
}

#ifdef EXF_HOPPER
/* The sums of one lane: of every strip of 16 tokens three products of 16 x 8, in shared
 * memory at its own places, and squares of its rows g and g + 8. */
struct sums {
    double *mix; /* [TOKENS, LD] of this warp */
    double square[STRIPS][2];
    __device__ __forceinline__ double &at(int strip, int n, int e)
    {
        int lane = threadIdx.x % 32;
        return mix[(strip * 16 + lane / 4 + e / 2 * 8) * LD + 8 * n + lane % 4 * 2 + e % 2];
    }
};

static __device__ __forceinline__ float norm2(float4 a)
{
    return (a.x * a.x + a.y * a.y) + (a.z * a.z + a.w * a.w);
}

/* d += 16 columns of the rows of x times those of three rows of fn. */
static __device__ __forceinline__ void step(float (&d)[STRIPS][3][4], const float4 (&a)[STRIPS][2], const float4 (&f)[3])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        exf_tf32_parts<2, true> y[3];
#pragma unroll
        for (int n = 0; n < 3; n++) {
            y[n].set(0, half ? f[n].z : f[n].x);
            y[n].set(1, half ? f[n].w : f[n].y);
        }
#pragma unroll
        for (int m = 0; m < STRIPS; m++) {
            exf_tf32_parts<4, true> x;
            x.set(0, half ? a[m][0].z : a[m][0].x);
            x.set(1, half ? a[m][1].z : a[m][1].x);
            x.set(2, half ? a[m][0].w : a[m][0].y);
            x.set(3, half ? a[m][1].w : a[m][1].y);
#pragma unroll
            for (int n = 0; n < 3; n++) exf_multiply<true>(d[m][n], x, y[n]);
        }
    }
}

/* Steps of 16 columns, `first` to `first` + FLUSH / RUN blocks of WARPS * RUN steps: of a
 * block every warp has RUN neighbouring steps, so that a row is read 4 KB at a time. */
template <bool WHOLE>
static __device__ __forceinline__ void add_columns(sums &s, const float4 *const (&row)[STRIPS][2], const float4 *const (&fn)[3],
                                                   int first, int steps)
{
    float d[STRIPS][3][4] = {}, square[STRIPS][2] = {};
#pragma unroll 2
    for (int k = 0; k < FLUSH; k++) {
        int at = first + k / RUN * WARPS * RUN + (int)threadIdx.x / 32 * RUN + k % RUN, i = at * 4 + threadIdx.x % 4;
        if (!WHOLE && at >= steps) continue;
        float4 a[STRIPS][2], f[3] = {fn[0][i], fn[1][i], fn[2][i]};
#pragma unroll
        for (int m = 0; m < 2 * STRIPS; m++) {
            a[m / 2][m % 2] = row[m / 2][m % 2][i];
            square[m / 2][m % 2] += norm2(a[m / 2][m % 2]);
        }
        step(d, a, f);
    }
#pragma unroll
    for (int m = 0; m < STRIPS; m++)
#pragma unroll
        for (int e = 0; e < 12; e++) s.at(m, e / 4, e % 4) += (double)d[m][e / 4][e % 4];
#pragma unroll
    for (int m = 0; m < 2 * STRIPS; m++) s.square[m / 2][m % 2] += (double)square[m / 2][m % 2];
}

/* This warp's share; row[m][0], row[m][1]: x of the strip's tokens g and g + 8, fn[n]: row 8 n + g. */
static __device__ __forceinline__ void add_up(sums &s, const float4 *const (&row)[STRIPS][2], const float4 *const (&fn)[3],
                                              int steps)
{
    int first = 0;
    for (int m = 0; m < STRIPS; m++)
        for (int e = 0; e < 12; e++) s.at(m, e / 4, e % 4) = 0;
    for (; first + WARPS * FLUSH <= steps; first += WARPS * FLUSH) add_columns<true>(s, row, fn, first, steps);
    if (first < steps) add_columns<false>(s, row, fn, first, steps);
}

static __device__ double sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

/* One line of a C: first the rows by exp and their sum, then columns and rows in turn. */
static __device__ void normalise(double *c, const exf_hyper_shape &s, int pass, int line)
{
    int S = s.streams, step = pass % 2 ? S : 1, at = pass % 2 ? line : line * S; /* odd: columns */
    double sum = pass ? s.eps : 0, top = -INFINITY;
    if (pass == 0) {
        for (int k = 0; k < S; k++) top = fmax(top, c[at + k]);
        for (int k = 0; k < S; k++) c[at + k] = exp(c[at + k] - top);
    }
    for (int k = 0; k < S; k++) sum += c[at + k * step];
    sum = 1 / sum;
    for (int k = 0; k < S; k++) c[at + k * step] = c[at + k * step] * sum + (pass ? 0 : s.eps);
}

/* Every token's C (sinkhorn.h), S threads a token. */
static __device__ void sinkhorn(double *mix, int n_mix, const exf_hyper_shape &s)
{
    int S = s.streams;
    for (int pass = 0; pass < 2 * max(s.iterations, 1); pass++) {
        for (int i = threadIdx.x; i < TOKENS * S; i += THREADS) normalise(mix + i / S * n_mix + 2 * S, s, pass, i % S);
        __syncthreads();
    }
}

/* Dot products to coefficients, all of the block's tokens. */
static __device__ void coefficients(double *mix, int n_mix, const exf_hyper_shape &s)
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

/* Shared: doubles [WARPS, TOKENS, LD], then [TOKENS, n_mix].  Grid: tokens / TOKENS. */
static __global__ void __launch_bounds__(THREADS) mix_tokens(float *mixing, int ld, const float *x, exf_hyper_shape s, int n_mix)
{
#ifdef EXF_HOPPER
    extern __shared__ double part[];
    double *mix = part + WARPS * TOKENS * LD;
    int width = s.streams * s.width, first = blockIdx.x * TOKENS, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4,
        c = threadIdx.x % 4;
    int last = s.n_tokens - 1;
    const float4 *row[STRIPS][2], *fn[3];
    for (int r = 0; r < 2 * STRIPS; r++)
        row[r / 2][r % 2] = reinterpret_cast<const float4 *>(x + (size_t)min(first + g + 8 * r, last) * width);
    for (int from = 0; from < n_mix; from += OUTPUTS) {
        sums t = {part + warp * TOKENS * LD, {}};
        for (int n = 0; n < 3; n++)
            fn[n] = reinterpret_cast<const float4 *>(s.fn + (size_t)min(from + 8 * n + g, n_mix - 1) * width);
        add_up(t, row, fn, width / 16);
#pragma unroll
        for (int r = 0; r < 2 * STRIPS; r++) {
            double square = t.square[r / 2][r % 2] + __shfl_xor_sync(0xffffffffu, t.square[r / 2][r % 2], 1);
            square += __shfl_xor_sync(0xffffffffu, square, 2);
            if (c == 0) t.mix[(g + 8 * r) * LD + OUTPUTS] = square;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < TOKENS * OUTPUTS; i += THREADS) {
            int token = i / OUTPUTS, m = i % OUTPUTS;
            double dot = 0, square = 0;
            for (int w = 0; w < WARPS; w++) {
                dot += part[(w * TOKENS + token) * LD + m];
                square += part[(w * TOKENS + token) * LD + OUTPUTS];
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
    __shared__ float pre[EXF_HYPER_STREAMS_MAX];
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

void exf_hyper_mix(exf_queue *q, float *u, float *mixing, const float *x, const exf_hyper_shape *s, int n_mix)
{
    int bytes = (WARPS * TOKENS * LD + TOKENS * n_mix) * (int)sizeof(double), ld = mixing ? n_mix : s->width;
    if (!mixing) mixing = u;
    if (q->err.code != EXF_OK || s->n_tokens == 0) return;
    exf_cuda_note(q, cudaFuncSetAttribute(mix_tokens, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "streams");
    EXF_LAUNCH(q, "streams", mix_tokens, (s->n_tokens + TOKENS - 1) / TOKENS, THREADS, bytes, mixing, ld, x, *s, n_mix);
    EXF_LAUNCH(q, "streams", gather, s->n_tokens, 256, 0, u, mixing, ld, x, s->streams, s->width / 4);
}
