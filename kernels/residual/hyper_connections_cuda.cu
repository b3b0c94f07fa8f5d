/* hyper_connections_cuda.cu - see hyper_connections.h: one block per token where hyper_mix.cu does not fit. */
#include "kernels/device/cuda_reduce.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/residual/hyper_connections_internal.cuh"

enum { THREADS = 256 };

static __device__ double sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

/* Divides n lines by (their sum + eps); lines are `line` apart, elements `step`. */
static __device__ void normalise(double *c, int n, int line, int step, double eps)
{
    for (int i = 0; i < n; i++) {
        double sum = eps;
        for (int k = 0; k < n; k++) sum += c[i * line + k * step];
        for (int k = 0; k < n; k++) c[i * line + k * step] /= sum;
    }
}

/* sinkhorn.h, by one thread: n is 4 in every released model. */
static __device__ void sinkhorn(double *c, int n, int iterations, double eps)
{
    for (int j = 0; j < n; j++) {
        double top = c[j * n], sum = 0;
        for (int k = 1; k < n; k++) top = fmax(top, c[j * n + k]);
        for (int k = 0; k < n; k++) sum += c[j * n + k] = exp(c[j * n + k] - top);
        for (int k = 0; k < n; k++) c[j * n + k] = c[j * n + k] / sum + eps;
    }
    normalise(c, n, 1, n, eps);
    for (int i = 1; i < iterations; i++) {
        normalise(c, n, n, 1, eps);
        normalise(c, n, 1, n, eps);
    }
}

/* mix[0..n) becomes pre, and with n > S post and C. */
static __device__ void coefficients(double *mix, int n, const exf_hyper_shape &s)
{
    int S = s.streams;
    for (int j = 0; j < S; j++) mix[j] = sigmoid(mix[j] * (double)s.scale[0] + (double)s.base[j]) + s.eps;
    if (n == S) return;
    for (int j = S; j < 2 * S; j++) mix[j] = 2 * sigmoid(mix[j] * (double)s.scale[1] + (double)s.base[j]);
    for (int j = 2 * S; j < n; j++) mix[j] = mix[j] * (double)s.scale[2] + (double)s.base[j];
    sinkhorn(mix + 2 * S, S, s.iterations, s.eps);
}

static __global__ void open(float *u, float *mixing, const float *x, exf_hyper_shape s, int n_mix)
{
    __shared__ double mix[(2 + EXF_HYPER_STREAMS_MAX) * EXF_HYPER_STREAMS_MAX];
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
    for (int i = threadIdx.x; i < s.width; i += blockDim.x) {
        float sum = 0;
        for (int j = 0; j < s.streams; j++) sum += (float)mix[j] * row[(size_t)j * s.width + i];
        u[t * s.width + i] = sum;
    }
}

void exf_hyper_pre_cuda(exf_queue *q, float *u, float *mixing, const float *x, const exf_hyper_shape *s)
{
    if (exf_hyper_mix_fits(x, s))
        exf_hyper_mix(q, u, mixing, x, s, (2 + s->streams) * s->streams);
    else if (s->n_tokens)
        EXF_LAUNCH(q, "hyper_pre", open, s->n_tokens, THREADS, 0, u, mixing, x, *s, (2 + s->streams) * s->streams);
}

void exf_hyper_head_cuda(exf_queue *q, float *u, const float *x, const exf_hyper_shape *s)
{
    if (exf_hyper_mix_fits(x, s))
        exf_hyper_mix(q, u, nullptr, x, s, s->streams);
    else if (s->n_tokens)
        EXF_LAUNCH(q, "hyper_head", open, s->n_tokens, THREADS, 0, u, (float *)nullptr, x, *s, s->streams);
}

static __global__ void close(float *x, const float *v, const float *mixing, exf_hyper_shape s)
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

/* Four streams, a quad a thread.  Grid: quads of a token, tokens. */
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
        EXF_LAUNCH(q, "hyper_post", close, s->n_tokens, THREADS, 0, x, v, mixing, *s);
}
