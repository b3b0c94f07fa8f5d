/* causal_conv_cuda.cu - the causal convolution; see delta_rule.h.
 *
 * A sequence is cut into up to 64 segments of at least 16 tokens, which run side by side; a thread has four channels of a
 * segment (one where rows are not aligned) and goes from its first token to its last, the window in registers, eight rows
 * loaded at a time.  A row is replaced in place, so the rows that the next segment's window reaches back to are kept first.
 *
 * The floor is one reading and one writing of x: 8192 channels and 4096 tokens are 268 MB, 0.064 ms at 4.2 TB/s; it reaches
 * 3048 GB/s, 72 % of a copy (docs/performance.md).  convolve_rows writes float16 instead and norms q and k in the same
 * pass: 201 MB, 0.048 ms; measured 0.065. */
#include "kernels/recurrent/delta_rule_internal.cuh"

enum { SEGMENTS = 64, SHORTEST = 16, BATCH = 8, THREADS = 128 };

/* The rows before every segment: [SEGMENTS, width - 1, channels]. */
size_t exf_causal_conv_workspace_cuda(int channels, int width)
{
    return (size_t)SEGMENTS * (width - 1) * channels;
}

/* Grid: columns of n floats, rows to keep, segments but the first. */
static __global__ void keep_rows(float *kept, const float *x, int ldx, int channels, int back, int length)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x, segment = blockIdx.z + 1;
    if (c < channels)
        kept[((size_t)segment * back + blockIdx.y) * channels + c] = x[((size_t)segment * length - back + blockIdx.y) * ldx + c];
}

static __device__ __forceinline__ float silu(float y)
{
    return __fdividef(y, 1.0f + __expf(-y));
}

/* LANES neighbouring channels. */
template <int LANES> struct lanes {
    float x[LANES];
};
template <int LANES> static __device__ __forceinline__ lanes<LANES> load(const float *p)
{
    lanes<LANES> r;
    if (LANES == 4) {
        float4 a = *reinterpret_cast<const float4 *>(p);
        r.x[0] = a.x, r.x[1 % LANES] = a.y, r.x[2 % LANES] = a.z, r.x[3 % LANES] = a.w;
    } else {
        r.x[0] = *p;
    }
    return r;
}
template <int LANES> static __device__ __forceinline__ void store(float *p, const lanes<LANES> &r)
{
    if (LANES == 4)
        *reinterpret_cast<float4 *>(p) = make_float4(r.x[0], r.x[1 % LANES], r.x[2 % LANES], r.x[3 % LANES]);
    else
        *p = r.x[0];
}

/* Grid: channels, segments. */
template <int WIDTH, int LANES>
static __global__ void __launch_bounds__(THREADS)
    convolve(float *x, int ldx, const float *w, const float *kept, int n_tokens, int channels, int length)
{
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * LANES, first = blockIdx.y * length;
    int end = first + length < n_tokens ? first + length : n_tokens;
    float tap[LANES][WIDTH];
    lanes<LANES> row[WIDTH - 1 + BATCH] = {};
    if (c >= channels) return;
#pragma unroll
    for (int l = 0; l < LANES; l++)
#pragma unroll
        for (int j = 0; j < WIDTH; j++) tap[l][j] = w[(size_t)(c + l) * WIDTH + j];
#pragma unroll
    for (int j = 0; j < WIDTH - 1; j++)
        if (first) row[j] = load<LANES>(kept + ((size_t)blockIdx.y * (WIDTH - 1) + j) * channels + c);
    for (int t = first; t < end; t += BATCH) {
        float *at = x + (size_t)t * ldx + c;
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (t + b < end) row[WIDTH - 1 + b] = load<LANES>(at + (size_t)b * ldx);
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            lanes<LANES> y;
#pragma unroll
            for (int l = 0; l < LANES; l++) {
                float sum = 0;
#pragma unroll
                for (int j = 0; j < WIDTH; j++) sum += tap[l][j] * row[b + j].x[l];
                y.x[l] = silu(sum);
            }
            if (t + b < end) store<LANES>(at + (size_t)b * ldx, y);
        }
#pragma unroll
        for (int j = 0; j < WIDTH - 1; j++) row[j] = row[BATCH + j];
    }
}

/* Any width: a thread a channel, from the last token to the first. */
static __global__ void causal_conv_silu(float *x, int ldx, const float *w, int n_tokens, int channels, int width)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= channels) return;
    for (int t = n_tokens - 1; t >= 0; t--) {
        float sum = 0;
        for (int back = t < width - 1 ? t : width - 1; back >= 0; back--)
            sum += w[(size_t)c * width + (width - 1 - back)] * x[(size_t)(t - back) * ldx + c];
        x[(size_t)t * ldx + c] = silu(sum);
    }
}

template <int WIDTH>
static void convolve_segments(exf_queue *q, float *x, int ldx, const float *w, int n_tokens, int channels, float *kept)
{
    int length = (n_tokens + SEGMENTS - 1) / SEGMENTS, segments;
    length = length < SHORTEST ? SHORTEST : length;
    segments = (n_tokens + length - 1) / length;
    if (segments > 1)
        EXF_LAUNCH(q, "causal_conv", keep_rows, dim3(exf_blocks((size_t)channels, THREADS), WIDTH - 1, (unsigned)segments - 1),
                   THREADS, 0, kept, x, ldx, channels, WIDTH - 1, length);
    if (channels % 4 == 0 && exf_aligned16(x, ldx) && exf_aligned16(kept, channels))
        EXF_LAUNCH(q, "causal_conv", (convolve<WIDTH, 4>), dim3(exf_blocks((size_t)channels / 4, THREADS), (unsigned)segments),
                   THREADS, 0, x, ldx, w, kept, n_tokens, channels, length);
    else
        EXF_LAUNCH(q, "causal_conv", (convolve<WIDTH, 1>), dim3(exf_blocks((size_t)channels, THREADS), (unsigned)segments), THREADS,
                   0, x, ldx, w, kept, n_tokens, channels, length);
}

void exf_causal_conv_silu_cuda(exf_queue *q, float *x, int ldx, const float *w, int n_tokens, int channels, int width,
                               float *workspace)
{
    if (n_tokens == 0 || channels == 0) return;
    if (width == 4)
        convolve_segments<4>(q, x, ldx, w, n_tokens, channels, workspace);
    else if (width == 3)
        convolve_segments<3>(q, x, ldx, w, n_tokens, channels, workspace);
    else if (width == 2)
        convolve_segments<2>(q, x, ldx, w, n_tokens, channels, workspace);
    else
        EXF_LAUNCH(q, "causal_conv", causal_conv_silu, exf_blocks((size_t)channels, 128), 128, 0, x, ldx, w, n_tokens, channels,
                   width);
}

/* ---- rows for the delta rule ------------------------------------------------------------ */

/* Grid: channels, segments.  A thread has four channels, LANES neighbours a head of q or k. */
template <int LANES>
static __global__ void __launch_bounds__(THREADS) convolve_rows(exf_delta_rows to, const float *x, const float *w,
                                                                exf_delta_shape s, int channels, int length, float eps, float scale)
{
    enum { WIDTH = 4, DK = 4 * LANES };
    int own = (blockIdx.x * blockDim.x + threadIdx.x) * 4, c = min(own, channels - 4), first = blockIdx.y * length,
    nq = s.n_key_heads * DK;
    int end = min(first + length, s.n_tokens), in = c < nq ? c : c < 2 * nq ? c - nq : c - 2 * nq,
    d = c < 2 * nq ? DK : s.value_dim;
    char *out = (c < nq ? to.q : c < 2 * nq ? to.k : to.v) + ((size_t)(in / d) * s.n_tokens * d + in % d) * 2;
    float tap[4][WIDTH], most = c < nq ? scale : 1;
    lanes<4> row[WIDTH - 1 + BATCH] = {};
#pragma unroll
    for (int l = 0; l < 4; l++)
#pragma unroll
        for (int j = 0; j < WIDTH; j++) tap[l][j] = w[(size_t)(c + l) * WIDTH + j];
#pragma unroll
    for (int j = 0; j < WIDTH - 1; j++)
        if (first + j >= WIDTH - 1) row[j] = load<4>(x + (size_t)(first + j - (WIDTH - 1)) * s.ldq + c);
    for (int t = first; t < end; t += BATCH) {
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (t + b < end) row[WIDTH - 1 + b] = load<4>(x + (size_t)(t + b) * s.ldq + c);
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            float y[4], square = 0, factor = 1;
#pragma unroll
            for (int l = 0; l < 4; l++) {
                float sum = 0;
#pragma unroll
                for (int j = 0; j < WIDTH; j++) sum += tap[l][j] * row[b + j].x[l];
                y[l] = silu(sum);
                square += y[l] * y[l];
            }
#pragma unroll
            for (int step = LANES / 2; step > 0; step >>= 1) square += __shfl_xor_sync(0xffffffffu, square, step);
            if (c < 2 * nq) factor = most / sqrtf(square + eps);
            if (t + b < end && own == c)
                *reinterpret_cast<uint2 *>(out + (size_t)(t + b) * d * 2) =
                    make_uint2(exf_half2(y[0] * factor, y[1] * factor), exf_half2(y[2] * factor, y[3] * factor));
        }
#pragma unroll
        for (int j = 0; j < WIDTH - 1; j++) row[j] = row[BATCH + j];
    }
}

static int rows_channels(const exf_delta_shape *s)
{
    return 2 * s->n_key_heads * s->key_dim + s->n_value_heads * s->value_dim;
}

int exf_conv_rows_fit(const float *x, const exf_delta_shape *s, int width)
{
    return width == 4 && (s->key_dim == 64 || s->key_dim == 128) && s->value_dim % EXF_DELTA_COLUMNS == 0 && s->ldk == s->ldq &&
           s->ldv == s->ldq && exf_aligned16(x, s->ldq);
}

void exf_conv_rows(exf_queue *q, exf_delta_rows to, const float *x, const float *taps, const exf_delta_shape *s, double eps,
                   double scale)
{
    int channels = rows_channels(s), length = (s->n_tokens + SEGMENTS - 1) / SEGMENTS;
    length = length < SHORTEST ? SHORTEST : length;
    dim3 grid(exf_blocks((size_t)channels / 4, THREADS), (unsigned)((s->n_tokens + length - 1) / length));
    if (s->key_dim == 64)
        EXF_LAUNCH(q, "causal_conv", convolve_rows<16>, grid, THREADS, 0, to, x, taps, *s, channels, length, (float)eps,
                   (float)scale);
    else
        EXF_LAUNCH(q, "causal_conv", convolve_rows<32>, grid, THREADS, 0, to, x, taps, *s, channels, length, (float)eps,
                   (float)scale);
}
