/* device_rows_cuda.cu - looks embeddings up, computes switch weights of shared experts, and searches
 * for elements that are not finite; see device_rows.h. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_reduce.cuh"
#include "kernels/rows/device_rows.h"

enum { THREADS = 256 };

static __global__ void embed(float *out, exf_matrix table, const int32_t *tokens, int width, int streams)
{
    size_t from = (size_t)tokens[blockIdx.x] * width, to = (size_t)blockIdx.x * width * streams;
    const uint16_t *half = static_cast<const uint16_t *>(table.p);
    const float *full = static_cast<const float *>(table.p);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float v = table.number == EXF_NUMBER_BF16 ? __uint_as_float((uint32_t)half[from + i] << 16) : full[from + i];
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

static __global__ void watch(unsigned long long *least, const float *x, size_t n, unsigned long long base)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += step)
        if ((__float_as_uint(x[i]) & 0x7f800000u) == 0x7f800000u) {
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
            if ((u[k] & 0x7f800000u) == 0x7f800000u) atomicMin(least, base + 4 * i + k);
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
