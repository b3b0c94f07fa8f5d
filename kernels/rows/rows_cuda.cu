/* rows_cuda.cu - see rows.h. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/rows/rows.h"

enum { THREADS = 256 };

static __global__ void add(float *y, const float *x, size_t n)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i];
}

void exf_add_cuda(exf_queue *q, float *y, const float *x, size_t n)
{
    if (n) EXF_LAUNCH(q, "add", add, exf_blocks(n, THREADS), THREADS, 0, y, x, n);
}

static __global__ void gather_rows(float *out, const float *x, const int32_t *row, int width)
{
    const float *in = x + (size_t)row[blockIdx.x] * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) out[(size_t)blockIdx.x * width + i] = in[i];
}

void exf_gather_rows_cuda(exf_queue *q, float *out, const float *x, const int32_t *row, int n_rows, int width)
{
    if (n_rows) EXF_LAUNCH(q, "gather_rows", gather_rows, n_rows, THREADS, 0, out, x, row, width);
}

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
