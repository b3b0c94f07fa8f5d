/* gate_cuda.cu - see gate.h.  Rows on 16-byte boundaries go four floats at a time. */
#include "kernels/device/cuda_reduce.cuh"
#include "kernels/rows/gate.h"
#include "kernels/device/hopper.cuh"

enum { THREADS = 256 };

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
