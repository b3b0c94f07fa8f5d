/* shared_sums_cuda.cu - shares device memory between processes, and adds up sums that lie in it; see shared_sums.h.
 *
 * A thread adds one sum.  Bytes: 8 (integers) or 24 (exact sums) of the other GPU's memory, and twice that of this one's.  The link
 * binds, 450 GB/s of an H100's or H200's NVLink: 0.6 ms for the 268 MB of a layer of 1024 pairs of rank 8 at H 2048. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/statistics/shared_sums.h"

#include <cstring>

enum { THREADS = 256 };
static_assert(sizeof(exf_memory_handle) == sizeof(cudaIpcMemHandle_t), "the bytes of a handle");

static exf_code refuse(cudaError_t e, const char *what, exf_err *err)
{
    if (e == cudaSuccess) return EXF_OK;
    cudaGetLastError(); /* what was refused must not be blamed on the next launch */
    return exf_fail(err, EXF_DEVICE, "%s between processes: %s", what, cudaGetErrorString(e));
}

exf_code exf_share_memory_cuda(exf_memory_handle *out, void *memory, exf_err *err)
{
    cudaIpcMemHandle_t h;
    cudaError_t e = cudaIpcGetMemHandle(&h, memory);
    if (e == cudaSuccess) memcpy(out, &h, sizeof h);
    return refuse(e, "sharing GPU memory", err);
}

exf_code exf_open_memory_cuda(void **out, const exf_memory_handle *handle, exf_err *err)
{
    cudaIpcMemHandle_t h;
    memcpy(&h, handle, sizeof h);
    *out = nullptr;
    return refuse(cudaIpcOpenMemHandle(out, h, cudaIpcMemLazyEnablePeerAccess), "opening GPU memory", err);
}

void exf_close_memory_cuda(void *opened)
{
    if (opened) cudaIpcCloseMemHandle(opened);
}

static __global__ void add_exact(exf_exact *to, const exf_exact *from, size_t n, unsigned long long *wrapped)
{
    size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x;
    if (i < n && exf_exact_merge(&to[i], &from[i])) atomicMax(wrapped, ~(unsigned long long)i);
}

static __global__ void add_integers(unsigned long long *to, const unsigned long long *from, size_t n, unsigned long long *wrapped)
{
    size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x;
    if (i >= n) return;
    unsigned long long was = to[i], term = from[i], sum = was + term;
    to[i] = sum;
    if ((~(was ^ term) & (was ^ sum)) >> 63) atomicMax(wrapped, ~(unsigned long long)i); /* equal signs gave the other */
}

void exf_add_exact_cuda(exf_queue *q, exf_exact *to, const exf_exact *from, size_t n, uint64_t *wrapped)
{
    if (n)
        EXF_LAUNCH(q, "sums of ranks", add_exact, exf_blocks(n, THREADS), THREADS, 0, to, from, n,
                   reinterpret_cast<unsigned long long *>(wrapped));
}

void exf_add_integers_cuda(exf_queue *q, int64_t *to, const int64_t *from, size_t n, uint64_t *wrapped)
{
    if (n)
        EXF_LAUNCH(q, "sums of ranks", add_integers, exf_blocks(n, THREADS), THREADS, 0,
                   reinterpret_cast<unsigned long long *>(to), reinterpret_cast<const unsigned long long *>(from), n,
                   reinterpret_cast<unsigned long long *>(wrapped));
}
