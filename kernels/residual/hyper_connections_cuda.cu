/* hyper_connections_cuda.cu - see hyper_connections.h.
 *
 * Opening a site: a token's coefficients on tensor cores where the shape fits (mix_tokens, then gather), else a block per
 * token.  The floor of S 4, H 4096 and 4096 tokens is one reading of x, 268 MB, and u written, 67 MB: 0.08 ms at 4.2 TB/s;
 * two kernels read x, the second partly from the cache: 0.22 ms.  Closing: x read and written, v read; 604 MB, 0.14 ms;
 * 97 % of a copy's rate (docs/performance.md). */
#include "kernels/device/cuda_rows.cuh"
#include "kernels/device/tensor_cores.cuh"
#include "kernels/residual/hyper_connections.h"

enum { THREADS = 256 };

static __device__ double sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

/* ---- opening on tensor cores -------------------------------------------------------------
 * A block has 32 tokens; its 16 warps go side by side through the S H floats of a token, 16 at a time, and multiply them by
 * fn (tensor_cores.cuh, EXACT).  Which of the 16 is the summed index of which product does not matter as long as x and fn
 * agree, so both are loaded in the order that memory has.  Products of 256 elements are added in float32, these sums in
 * double: |error| <= 2^-16 of the sum of |fn x|, and the same bits in whatever block a token is. */

enum { TOKENS = 32, STRIPS = TOKENS / 16, WARPS = 16, MIX_THREADS = 32 * WARPS, OUTPUTS = 24, LD = OUTPUTS + 1 };
/* FLUSH: steps of 16 columns whose products are added in float32; RUN: neighbouring steps of a warp. */
enum { FLUSH = 16, RUN = 4 };

/* Bytes of shared memory: every warp's sums, and the coefficients of the block's tokens. */
static int mix_bytes(int n_mix)
{
    return (WARPS * TOKENS * LD + TOKENS * n_mix) * (int)sizeof(double);
}

/* Returns 1 if this device and shape are supported: u can hold a token's pre, and u and x consist of groups of 4 and 16 floats
 * on 16-byte boundaries. */
static bool mix_fits(const float *u, const float *x, const exf_hyper_shape *s, int n_mix)
{
    int width = s->streams * s->width;
    return exf_uses_tensor_cores((size_t)mix_bytes(n_mix)) && s->width >= s->streams && width % 16 == 0 &&
           exf_aligned16(u, s->width) && exf_aligned16(x, width) && exf_aligned16(s->fn, width);
}

#ifdef EXF_MMA
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
            float4 v = a[m / 2][m % 2] = row[m / 2][m % 2][i];
            square[m / 2][m % 2] += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
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

/* One line of a C: first the rows by exp and their sum, then columns and rows in turn. */
static __device__ void normalise_line(double *c, const exf_hyper_shape &s, int pass, int line)
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

/* Dot products to coefficients, all of the block's tokens. */
static __device__ void coefficients_together(double *mix, int n_mix, const exf_hyper_shape &s)
{
    int S = s.streams;
    for (int i = threadIdx.x; i < TOKENS * n_mix; i += MIX_THREADS) {
        int m = i % n_mix, kind = m < S ? 0 : m < 2 * S ? 1 : 2;
        double z = mix[i] * (double)s.scale[kind] + (double)s.base[m];
        mix[i] = kind == 0 ? sigmoid(z) + s.eps : kind == 1 ? 2 * sigmoid(z) : z;
    }
    __syncthreads();
    if (n_mix <= S) return;
    for (int pass = 0; pass < 2 * max(s.iterations, 1); pass++) { /* every token's C, S threads a token */
        for (int i = threadIdx.x; i < TOKENS * S; i += MIX_THREADS) normalise_line(mix + i / S * n_mix + 2 * S, s, pass, i % S);
        __syncthreads();
    }
}
#endif

/* Shared: doubles [WARPS, TOKENS, LD], then [TOKENS, n_mix].  Grid: tokens / TOKENS. */
static __global__ void __launch_bounds__(MIX_THREADS)
    mix_tokens(float *mixing, int ld, const float *x, exf_hyper_shape s, int n_mix)
{
#ifdef EXF_MMA
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
        for (int i = threadIdx.x; i < TOKENS * OUTPUTS; i += MIX_THREADS) {
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
    coefficients_together(mix, n_mix, s);
    for (int i = threadIdx.x; i < TOKENS * n_mix; i += MIX_THREADS)
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

/* mixing [T, n_mix]: pre, and with n_mix > S post and C; u [T, H] from pre.  mixing NULL: only u is wanted, and n_mix is S. */
static void mix_and_gather(exf_queue *q, float *u, float *mixing, const float *x, const exf_hyper_shape *s, int n_mix)
{
    int bytes = mix_bytes(n_mix), ld = mixing ? n_mix : s->width;
    if (!mixing) mixing = u;
    if (q->err.code != EXF_OK || s->n_tokens == 0) return;
    /* Allowed is what any shape takes, since other threads may launch another at the same time. */
    size_t most = (size_t)mix_bytes((2 + EXF_HYPER_STREAMS_MAX) * EXF_HYPER_STREAMS_MAX), here = exf_most_shared_bytes();
    most = most < here ? most : here;
    exf_cuda_note(q, cudaFuncSetAttribute(mix_tokens, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most), "streams");
    EXF_LAUNCH(q, "streams", mix_tokens, (s->n_tokens + TOKENS - 1) / TOKENS, MIX_THREADS, bytes, mixing, ld, x, *s, n_mix);
    EXF_LAUNCH(q, "streams", gather, s->n_tokens, 256, 0, u, mixing, ld, x, s->streams, s->width / 4);
}

/* ---- opening, any shape: a block per token --------------------------------------------------- */

/* Divides n lines by (their sum + eps); lines are `line` apart, elements `step`. */
static __device__ void normalise(double *c, int n, int line, int step, double eps)
{
    for (int i = 0; i < n; i++) {
        double sum = eps;
        for (int k = 0; k < n; k++) sum += c[i * line + k * step];
        for (int k = 0; k < n; k++) c[i * line + k * step] /= sum;
    }
}

/* mix[0..n) becomes pre, and with n > S post and C, by one thread: S is 4 in every released model. */
static __device__ void coefficients(double *mix, int n, const exf_hyper_shape &s)
{
    int S = s.streams;
    double *c = mix + 2 * S;
    for (int j = 0; j < S; j++) mix[j] = sigmoid(mix[j] * (double)s.scale[0] + (double)s.base[j]) + s.eps;
    if (n == S) return;
    for (int j = S; j < 2 * S; j++) mix[j] = 2 * sigmoid(mix[j] * (double)s.scale[1] + (double)s.base[j]);
    for (int j = 2 * S; j < n; j++) mix[j] = mix[j] * (double)s.scale[2] + (double)s.base[j];
    for (int j = 0; j < S; j++) {
        double top = c[j * S], sum = 0;
        for (int k = 1; k < S; k++) top = fmax(top, c[j * S + k]);
        for (int k = 0; k < S; k++) sum += c[j * S + k] = exp(c[j * S + k] - top);
        for (int k = 0; k < S; k++) c[j * S + k] = c[j * S + k] / sum + s.eps;
    }
    normalise(c, S, 1, S, s.eps);
    for (int i = 1; i < s.iterations; i++) {
        normalise(c, S, S, 1, s.eps);
        normalise(c, S, 1, S, s.eps);
    }
}

/* The sum of the streams, by all threads of a block. */
static __device__ void gather_token(float *u, const float *row, const float *pre, int streams, int width)
{
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float sum = 0;
        for (int j = 0; j < streams; j++) sum += pre[j] * row[(size_t)j * width + i];
        u[i] = sum;
    }
}

static __global__ void gather_any(float *u, const float *mixing, const float *x, int streams, int width)
{
    size_t t = blockIdx.x;
    gather_token(u + t * width, x + t * streams * width, mixing + t * ((2 + streams) * streams), streams, width);
}

static __global__ void open_token(float *u, float *mixing, const float *x, exf_hyper_shape s, int n_mix)
{
    __shared__ double mix[(2 + EXF_HYPER_STREAMS_MAX) * EXF_HYPER_STREAMS_MAX];
    __shared__ float pre[EXF_HYPER_STREAMS_MAX];
    int width = s.streams * s.width;
    size_t t = blockIdx.x;
    const float *row = x + t * width;
    double square = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) square += (double)row[i] * (double)row[i];
    double r = 1 / sqrt(exf_block_sum(square) / width + s.norm_eps);
    for (int m = 0; m < n_mix; m++) {
        double dot = 0;
        for (int i = threadIdx.x; i < width; i += blockDim.x) dot += (double)s.fn[(size_t)m * width + i] * (double)row[i];
        dot = exf_block_sum(dot);
        if (threadIdx.x == 0) mix[m] = dot * r;
    }
    if (threadIdx.x == 0) coefficients(mix, n_mix, s);
    __syncthreads();
    for (int m = threadIdx.x; mixing && m < n_mix; m += blockDim.x) mixing[t * n_mix + m] = (float)mix[m];
    if (threadIdx.x < (unsigned)s.streams) pre[threadIdx.x] = (float)mix[threadIdx.x];
    __syncthreads();
    gather_token(u + t * s.width, row, pre, s.streams, s.width);
}

void exf_hyper_pre_cuda(exf_queue *q, float *u, float *mixing, const float *x, const exf_hyper_shape *s)
{
    int n_mix = (2 + s->streams) * s->streams;
    if (mix_fits(u, x, s, n_mix))
        mix_and_gather(q, u, mixing, x, s, n_mix);
    else if (s->n_tokens)
        EXF_LAUNCH(q, "hyper_pre", open_token, s->n_tokens, THREADS, 0, u, mixing, x, *s, n_mix);
}

void exf_hyper_input_cuda(exf_queue *q, float *u, const float *mixing, const float *x, const exf_hyper_shape *s)
{
    int n_mix = (2 + s->streams) * s->streams;
    if (s->n_tokens == 0) return;
    if (mix_fits(u, x, s, n_mix)) /* as exf_hyper_pre_cuda() chose */
        EXF_LAUNCH(q, "streams", gather, s->n_tokens, 256, 0, u, mixing, n_mix, x, s->streams, s->width / 4);
    else
        EXF_LAUNCH(q, "streams", gather_any, s->n_tokens, THREADS, 0, u, mixing, x, s->streams, s->width);
}

void exf_hyper_head_cuda(exf_queue *q, float *u, const float *x, const exf_hyper_shape *s)
{
    if (mix_fits(u, x, s, s->streams))
        mix_and_gather(q, u, nullptr, x, s, s->streams);
    else if (s->n_tokens)
        EXF_LAUNCH(q, "hyper_head", open_token, s->n_tokens, THREADS, 0, u, (float *)nullptr, x, *s, s->streams);
}

/* ---- closing -------------------------------------------------------------------------------- */

static __global__ void close_token(float *x, const float *v, const float *mixing, exf_hyper_shape s)
{
    size_t t = blockIdx.x;
    int S = s.streams;
    const float *post = mixing + t * ((2 + S) * S) + S, *c = post + S;
    for (int i = threadIdx.x; i < s.width; i += blockDim.x) {
        float old[EXF_HYPER_STREAMS_MAX];
        for (int j = 0; j < S; j++) old[j] = x[(t * S + j) * s.width + i];
        for (int k = 0; k < S; k++) {
            float sum = post[k] * v[t * s.width + i];
            for (int j = 0; j < S; j++) sum += c[j * S + k] * old[j]; /* transposed: the first index is summed */
            x[(t * S + k) * s.width + i] = sum;
        }
    }
}

/* Four streams, a quad a thread.  Grid: quads of all tokens. */
static __global__ void close_quads(float4 *x, const float4 *v, const float *mixing, int quads, unsigned total)
{
    enum { S = 4 };
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x, t = at / (unsigned)quads;
    if (at >= total) return;
    const float *post = mixing + (size_t)t * ((2 + S) * S) + S, *c = post + S;
    float4 *row = x + (size_t)t * S * quads + at % (unsigned)quads, new_part = v[at], old[S];
#pragma unroll
    for (int j = 0; j < S; j++) old[j] = row[(size_t)j * quads];
#pragma unroll
    for (int k = 0; k < S; k++) {
        float p = post[k];
        float4 sum = make_float4(p * new_part.x, p * new_part.y, p * new_part.z, p * new_part.w);
#pragma unroll
        for (int j = 0; j < S; j++) {
            float w = c[j * S + k];
            sum = make_float4(sum.x + w * old[j].x, sum.y + w * old[j].y, sum.z + w * old[j].z, sum.w + w * old[j].w);
        }
        row[(size_t)k * quads] = sum;
    }
}

void exf_hyper_post_cuda(exf_queue *q, float *x, const float *v, const float *mixing, const exf_hyper_shape *s)
{
    size_t quads = (size_t)s->n_tokens * s->width / 4;
    if (s->n_tokens == 0) return;
    if (s->streams == 4 && exf_aligned16(x, s->width) && exf_aligned16(v, s->width) && quads < 0x7fffffff)
        EXF_LAUNCH(q, "hyper_post", close_quads, exf_blocks(quads, THREADS), THREADS, 0, reinterpret_cast<float4 *>(x),
                   reinterpret_cast<const float4 *>(v), mixing, s->width / 4, (unsigned)quads);
    else
        EXF_LAUNCH(q, "hyper_post", close_token, s->n_tokens, THREADS, 0, x, v, mixing, *s);
}
