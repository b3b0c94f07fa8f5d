/* layer_sums_grams_cuda.cu - inner products of the outputs that another program has in a GPU's memory; see layer_sums.h.
 *
 * A thread has one product of two of a token's outputs, in the eight lanes of exf_dot(), which it keeps in registers: a product of
 * two float32 is exact in double, so that an fma rounds as the host's sum of it.  A token's outputs are read once from memory and
 * K times from the cache.  K 8, H 2048, bfloat16: 32 KB read and 512 bytes written; 74 k fma. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/statistics/layer_sums.h"

enum { GRAM_THREADS = 128 };

template <class T>
static __global__ void __launch_bounds__(GRAM_THREADS)
    multiply_outputs(double *grams, const T *outputs, int top_k, int d_model, size_t n_tokens)
{
    int pairs = top_k * (top_k + 1) / 2, a = 0;
    size_t at = (size_t)blockIdx.x * GRAM_THREADS + threadIdx.x, token = at / (size_t)pairs;
    if (token >= n_tokens) return;
    int b = (int)(at % (size_t)pairs);
    for (; b > a; a++) b -= a + 1; /* the pair's number is a (a + 1) / 2 + b, b <= a */
    const T *x = outputs + (token * (size_t)top_k + (size_t)a) * (size_t)d_model,
            *y = outputs + (token * (size_t)top_k + (size_t)b) * (size_t)d_model;
    double lane[EXF_STEP] = {0};
    for (int c = 0; c < d_model; c += EXF_STEP) {
        float u[EXF_STEP], v[EXF_STEP];
        exf_load_step(u, x, c, d_model);
        exf_load_step(v, y, c, d_model);
#pragma unroll
        for (int j = 0; j < EXF_STEP; j++) lane[j] = __fma_rn((double)u[j], (double)v[j], lane[j]);
    }
    double *gram = grams + token * (size_t)top_k * (size_t)top_k;
    gram[a * top_k + b] = gram[b * top_k + a] =
        ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static cudaError_t queue_products(double *grams, const exf_grams_call *c)
{
    cudaStream_t stream = (cudaStream_t)c->stream;
    size_t products = (size_t)c->n_tokens * (size_t)c->top_k * (size_t)(c->top_k + 1) / 2;
    unsigned blocks = (unsigned)((products + GRAM_THREADS - 1) / GRAM_THREADS);
    if (c->outputs.number == EXF_NUMBER_BF16)
        multiply_outputs<<<blocks, GRAM_THREADS, 0, stream>>>(grams, (const uint16_t *)c->outputs.p, c->top_k, c->d_model,
                                                              (size_t)c->n_tokens);
    else
        multiply_outputs<<<blocks, GRAM_THREADS, 0, stream>>>(grams, (const float *)c->outputs.p, c->top_k, c->d_model,
                                                              (size_t)c->n_tokens);
    return cudaGetLastError();
}

static cudaError_t queue_copy(void *to, const void *from, size_t bytes, const exf_grams_call *c)
{
    return from ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, (cudaStream_t)c->stream) : cudaSuccess;
}

/* On the device that has the rows. */
static cudaError_t multiply_and_copy(const exf_grams_call *c)
{
    size_t n = (size_t)c->n_tokens, slots = n * (size_t)c->top_k, bytes = slots * (size_t)c->top_k * sizeof(double);
    void *grams = nullptr;
    cudaError_t e = cudaMallocAsync(&grams, bytes, (cudaStream_t)c->stream), freed = cudaSuccess;
    if (e != cudaSuccess) return e;
    e = queue_products((double *)grams, c);
    if (e == cudaSuccess) e = queue_copy(c->host_ids, c->ids, slots * sizeof *c->ids, c);
    if (e == cudaSuccess) e = queue_copy(c->host_weights, c->weights, slots * sizeof *c->weights, c);
    if (e == cudaSuccess) e = queue_copy(c->host_stream_sq, c->stream_sq, n * sizeof *c->stream_sq, c);
    if (e == cudaSuccess) e = queue_copy(c->grams, grams, bytes, c);
    freed = cudaFreeAsync(grams, (cudaStream_t)c->stream);
    cudaError_t done = cudaStreamSynchronize((cudaStream_t)c->stream);
    return e != cudaSuccess ? e : done != cudaSuccess ? done : freed;
}

exf_code exf_layer_sums_grams_cuda(const exf_grams_call *c, exf_err *err)
{
    cudaPointerAttributes where;
    int before = 0;
    if (c->n_tokens < 1) return EXF_OK;
    if ((uintptr_t)c->outputs.p % 16) return exf_fail(err, EXF_USAGE, "outputs in CUDA memory begin at no multiple of 16 bytes");
    cudaError_t e = cudaPointerGetAttributes(&where, c->outputs.p);
    if (e == cudaSuccess && where.type != cudaMemoryTypeDevice && where.type != cudaMemoryTypeManaged)
        return exf_fail(err, EXF_USAGE, "outputs are said to be in CUDA memory and are not");
    if (e == cudaSuccess) e = cudaGetDevice(&before);
    if (e == cudaSuccess) e = cudaSetDevice(where.device);
    if (e == cudaSuccess) e = multiply_and_copy(c);
    cudaError_t back = cudaSetDevice(before);
    if (e == cudaSuccess) e = back;
    return e == cudaSuccess ? EXF_OK : exf_fail(err, EXF_DEVICE, "rows in CUDA memory: %s", cudaGetErrorString(e));
}
