/* rows_cuda.cu - rows that are read once and written once; see rows.h.  Norms and rounding are in rows_norm_cuda.cu.
 *
 * All of these are bound by memory: a thread an element, or four where rows lie on 16-byte boundaries, in blocks of 256.
 * The floor is the bytes of their arrays at the rate of a copy: y += x over n floats moves 12 n bytes, a gate 12, a copy
 * of columns or a gathered row 8, the embedding (2 or 4) + 4 streams, a search for what is not finite 4; 100 MB take
 * 0.024 ms at 4.2 TB/s.  Gates reach 75 to 94 % of a copy's rate (docs/performance.md). */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/rows/rows.h"

enum { THREADS = 256 };

/* ---- elements ------------------------------------------------------------------------- */

static __global__ void add(float *y, const float *x, size_t n)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i];
}

void exf_add_cuda(exf_queue *q, float *y, const float *x, size_t n)
{
    if (n) EXF_LAUNCH(q, "add", add, exf_blocks(n, THREADS), THREADS, 0, y, x, n);
}

static __global__ void clamp(float *y, size_t n, float limit)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) y[i] = exf_cut(y[i], limit);
}

void exf_clamp_cuda(exf_queue *q, float *y, size_t n, float limit)
{
    if (n) EXF_LAUNCH(q, "clamp", clamp, exf_blocks(n, THREADS), THREADS, 0, y, n, limit);
}

static __global__ void swiglu(float *g, const float *u, size_t n, float limit)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) g[i] = exf_swiglu(g[i], u[i], limit);
}

static __global__ void scale(float *y, size_t n, float factor, const float *by)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] *= by ? factor * *by : factor;
}

void exf_scale_cuda(exf_queue *q, float *y, size_t n, float factor, const float *by)
{
    if (n) EXF_LAUNCH(q, "scale", scale, exf_blocks(n, THREADS), THREADS, 0, y, n, factor, by);
}

static __global__ void soft_cap(float *y, size_t n, float cap)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = cap * tanhf(y[i] / cap);
}

void exf_soft_cap_cuda(exf_queue *q, float *y, size_t n, float cap)
{
    if (n) EXF_LAUNCH(q, "soft cap", soft_cap, exf_blocks(n, THREADS), THREADS, 0, y, n, cap);
}

void exf_swiglu_cuda(exf_queue *q, float *g, const float *u, size_t n, float limit)
{
    if (n) EXF_LAUNCH(q, "swiglu", swiglu, exf_blocks(n, THREADS), THREADS, 0, g, u, n, limit);
}

/* The operations on an element: op(own value, the other array's). */
struct plus_bias {
    __device__ float operator()(float y, float b) const
    {
        return y + b;
    }
};
struct replace {
    __device__ float operator()(float, float x) const
    {
        return x;
    }
};
struct gate_by {
    __device__ float operator()(float y, float g) const
    {
        return y / (1.0f + expf(-g));
    }
};

/* y[r, i] = op(y[r, i], x[r, i]), rows ldy and ldx apart. */
template <class Op> static __global__ void each(float *y, int ldy, const float *x, int ldx, size_t total, int n)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= total) return;
    float *at = y + i / n * ldy + i % n;
    *at = Op()(*at, x[i / n * ldx + i % n]);
}

/* The same, n quads a row. */
template <class Op> static __global__ void each_quad(float *y, int ldy, const float *x, int ldx, unsigned total, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, r = i / n, c = i % n;
    if (i >= total) return;
    float4 *at = reinterpret_cast<float4 *>(y + (size_t)r * ldy) + c, a = *at,
           b = reinterpret_cast<const float4 *>(x + (size_t)r * ldx)[c];
    Op op;
    *at = make_float4(op(a.x, b.x), op(a.y, b.y), op(a.z, b.z), op(a.w, b.w));
}

template <class Op>
static void on_rows(exf_queue *q, const char *name, float *y, int ldy, const float *x, int ldx, int n_rows, int n)
{
    size_t total = (size_t)n_rows * n;
    if (total == 0) return;
    if (n % 4 == 0 && exf_aligned16(y, ldy) && exf_aligned16(x, ldx) && total / 4 < 0x7fffffff)
        EXF_LAUNCH(q, name, each_quad<Op>, exf_blocks(total / 4, THREADS), THREADS, 0, y, ldy, x, ldx, (unsigned)(total / 4),
                   (unsigned)n / 4);
    else
        EXF_LAUNCH(q, name, each<Op>, exf_blocks(total, THREADS), THREADS, 0, y, ldy, x, ldx, total, n);
}

static __global__ void scale_rows(float *y, const float *factor, size_t total, int n)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < total) y[i] *= factor[i / n];
}

void exf_scale_rows_cuda(exf_queue *q, float *y, const float *factor, int n_rows, int n)
{
    size_t total = (size_t)n_rows * n;
    if (total) EXF_LAUNCH(q, "scale_rows", scale_rows, exf_blocks(total, THREADS), THREADS, 0, y, factor, total, n);
}

void exf_add_bias_cuda(exf_queue *q, float *y, const float *bias, int n_rows, int n)
{
    on_rows<plus_bias>(q, "add_bias", y, n, bias, 0, n_rows, n);
}

void exf_copy_columns_cuda(exf_queue *q, float *out, int ldo, const float *x, int ldx, int n_rows, int n)
{
    on_rows<replace>(q, "copy_columns", out, ldo, x, ldx, n_rows, n);
}

/* A thread has as many neighbouring floats of a row as T has, and writes them `count` times. */
template <class T>
static __global__ void repeat(T *out, int ldo, int count, int step, const T *x, int ldx, unsigned total, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, r = i / n, c = i % n;
    if (i >= total) return;
    T v = x[(size_t)r * ldx + c], *to = out + (size_t)r * ldo + c;
    for (int k = 0; k < count; k++) to[(size_t)k * step] = v;
}

void exf_repeat_columns_cuda(exf_queue *q, float *out, int ldo, int count, int step, const float *x, int ldx, int n_rows, int n)
{
    size_t total = (size_t)n_rows * n;
    if (total == 0) return;
    if (total >= 0x7fffffff) {
        for (int c = 0; c < count; c++) exf_copy_columns_cuda(q, out + (size_t)c * step, ldo, x, ldx, n_rows, n);
    } else if (n % 4 == 0 && step % 4 == 0 && exf_aligned16(out, ldo) && exf_aligned16(x, ldx)) {
        EXF_LAUNCH(q, "repeat_columns", repeat<float4>, exf_blocks(total / 4, THREADS), THREADS, 0, reinterpret_cast<float4 *>(out),
                   ldo / 4, count, step / 4, reinterpret_cast<const float4 *>(x), ldx / 4, (unsigned)(total / 4), (unsigned)n / 4);
    } else {
        EXF_LAUNCH(q, "repeat_columns", repeat<float>, exf_blocks(total, THREADS), THREADS, 0, out, ldo, count, step, x, ldx,
                   (unsigned)total, (unsigned)n);
    }
}

void exf_sigmoid_gate_cuda(exf_queue *q, float *y, const float *gate, int n_rows, int d, int stride)
{
    on_rows<gate_by>(q, "sigmoid_gate", y, d, gate, stride, n_rows, d);
}

/* ---- rows by number ---------------------------------------------------------------------- */

static __global__ void gather_rows(float *out, const float *x, const int32_t *row, int width)
{
    const float *in = x + (size_t)row[blockIdx.x] * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) out[(size_t)blockIdx.x * width + i] = in[i];
}

void exf_gather_rows_cuda(exf_queue *q, float *out, const float *x, const int32_t *row, int n_rows, int width)
{
    if (n_rows) EXF_LAUNCH(q, "gather_rows", gather_rows, n_rows, THREADS, 0, out, x, row, width);
}

static __global__ void embed(float *out, exf_matrix table, const int32_t *tokens, int width, int streams)
{
    size_t from = (size_t)tokens[blockIdx.x] * width, to = (size_t)blockIdx.x * width * streams;
    const uint16_t *half = static_cast<const uint16_t *>(table.p);
    const float *full = static_cast<const float *>(table.p);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float v = table.number == EXF_NUMBER_BF16 ? exf_widen(half[from + i]) : full[from + i];
        for (int s = 0; s < streams; s++) out[to + (size_t)s * width + i] = v;
    }
}

void exf_embed_cuda(exf_queue *q, float *out, exf_matrix table, const int32_t *tokens, size_t n_tokens, int width, int streams)
{
    if (n_tokens) EXF_LAUNCH(q, "embed", embed, (unsigned)n_tokens, THREADS, 0, out, table, tokens, width, streams);
}

static __global__ void switch_rows(float *out, const float *x, const float *w, int n)
{
    const float *in = x + (size_t)blockIdx.x * n;
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += (double)in[i] * (double)w[i];
    sum = exf_block_sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = (float)(1.0 / (1.0 + exp(-sum)));
}

void exf_switch_weights_cuda(exf_queue *q, float *out, const float *x, const float *w, int n_rows, int n)
{
    if (n_rows) EXF_LAUNCH(q, "switch_weights", switch_rows, n_rows, THREADS, 0, out, x, w, n);
}

/* ---- elements that are not finite ---------------------------------------------------------- */

/* least becomes the smallest index of an element that is not finite. */
static __global__ void first_not_finite(const float *x, size_t n, unsigned long long *least)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n && !isfinite(x[i])) atomicMin(least, (unsigned long long)i);
}

exf_code exf_first_not_finite_cuda(exf_queue *q, const float *x, size_t n, int64_t *at, exf_err *err)
{
    unsigned long long least = ~0ull, *least_on_device = nullptr;
    *at = -1;
    if (!exf_cuda_note(q, cudaMallocAsync((void **)&least_on_device, sizeof least, q->stream), "first_not_finite"))
        return exf_finish_cuda(q, err);
    exf_cuda_note(q, cudaMemcpyAsync(least_on_device, &least, sizeof least, cudaMemcpyHostToDevice, q->stream), "first_not_finite");
    if (n) EXF_LAUNCH(q, "first_not_finite", first_not_finite, exf_blocks(n, THREADS), THREADS, 0, x, n, least_on_device);
    exf_cuda_note(q, cudaMemcpyAsync(&least, least_on_device, sizeof least, cudaMemcpyDeviceToHost, q->stream), "first_not_finite");
    exf_cuda_note(q, cudaFreeAsync(least_on_device, q->stream), "first_not_finite");
    exf_code rc = exf_finish_cuda(q, err);
    if (rc == EXF_OK && least != ~0ull) *at = (int64_t)least;
    return rc;
}

static __global__ void watch(unsigned long long *least, const float *x, size_t n, unsigned long long base)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += step)
        if (exf_not_finite(__float_as_uint(x[i]))) {
            atomicMin(least, base + i);
            return;
        }
}

static __global__ void watch_fours(unsigned long long *least, const uint4 *x, size_t n, unsigned long long base)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += step) {
        uint4 v = x[i];
        uint32_t u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (exf_not_finite(u[k])) atomicMin(least, base + 4 * i + k);
    }
}

void exf_watch_finite_cuda(exf_queue *q, uint64_t *least, const float *x, size_t n, uint64_t base)
{
    unsigned long long *to = reinterpret_cast<unsigned long long *>(least);
    unsigned most = (unsigned)q->multiprocessors * 8;
    if (n == 0) return;
    if (n % 4 == 0 && ((uintptr_t)x & 15) == 0) {
        unsigned blocks = exf_blocks(n / 4, THREADS);
        EXF_LAUNCH(q, "watch_finite", watch_fours, blocks < most ? blocks : most, THREADS, 0, to,
                   reinterpret_cast<const uint4 *>(x), n / 4, base);
    } else {
        unsigned blocks = exf_blocks(n, THREADS);
        EXF_LAUNCH(q, "watch_finite", watch, blocks < most ? blocks : most, THREADS, 0, to, x, n, base);
    }
}
