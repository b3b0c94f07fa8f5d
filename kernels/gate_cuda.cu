/* gate_cuda.cu - see gate.h. */
#include "kernels/cuda_queue.cuh"
#include "kernels/cuda_reduce.cuh"
#include "kernels/gate.h"

enum { THREADS = 256 };

static __global__ void add_bias(float *y, const float *bias, size_t total, int n)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < total) y[i] += bias[i % n];
}

void exf_add_bias_cuda(exf_queue *q, float *y, const float *bias, int n_rows, int n)
{
    size_t total = (size_t)n_rows * n;
    if (total) EXF_LAUNCH(q, "add_bias", add_bias, exf_blocks(total, THREADS), THREADS, 0, y, bias, total, n);
}

static __global__ void copy_columns(float *out, int ldo, const float *x, int ldx, size_t total, int n)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < total) out[i / n * ldo + i % n] = x[i / n * ldx + i % n];
}

void exf_copy_columns_cuda(exf_queue *q, float *out, int ldo, const float *x, int ldx, int n_rows, int n)
{
    size_t total = (size_t)n_rows * n;
    if (total) EXF_LAUNCH(q, "copy_columns", copy_columns, exf_blocks(total, THREADS), THREADS, 0, out, ldo, x, ldx, total, n);
}

static __global__ void sigmoid_gate(float *y, const float *gate, size_t total, int d, int stride)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < total) y[i] /= 1.0f + expf(-gate[i / d * stride + i % d]);
}

void exf_sigmoid_gate_cuda(exf_queue *q, float *y, const float *gate, int n_rows, int d, int stride)
{
    size_t total = (size_t)n_rows * d;
    if (total) EXF_LAUNCH(q, "sigmoid_gate", sigmoid_gate, exf_blocks(total, THREADS), THREADS, 0, y, gate, total, d, stride);
}

/* One block per row: the gate's dot product, then the row. */
static __global__ void sigmoid_switch(float *y, int n, const float *x, const float *w, int k)
{
    const float *in = x + (size_t)blockIdx.x * k;
    double dot = 0;
    for (int i = threadIdx.x; i < k; i += blockDim.x) dot += (double)in[i] * (double)w[i];
    float gate = (float)(1 / (1 + exp(-exf_block_sum(dot))));
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[(size_t)blockIdx.x * n + i] *= gate;
}

void exf_sigmoid_switch_cuda(exf_queue *q, float *y, int n, const float *x, const float *w, int k, int n_rows)
{
    if (n_rows) EXF_LAUNCH(q, "sigmoid_switch", sigmoid_switch, n_rows, THREADS, 0, y, n, x, w, k);
}
