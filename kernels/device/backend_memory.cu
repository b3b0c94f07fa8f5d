/* backend_memory.cu - allocates the GPU's memory and pinned host memory and counts the bytes. */
#include "kernels/device/backend_memory.cuh"
#include "kernels/device/cuda_queue.cuh"

#include <cstring>
#include <mutex>
#include <unordered_map>

static std::mutex guard;
static std::unordered_map<void *, size_t> held;
static uint64_t now_held, most_held;

static exf_code keep(void *p, size_t bytes, const char *what, exf_err *err)
{
    std::lock_guard<std::mutex> lock(guard);
    try {
        held[p] = bytes;
    } catch (const std::bad_alloc &) {
        cudaFree(p);
        return exf_fail(err, EXF_NOSPACE, "out of memory for the list of allocations (%s)", what);
    }
    now_held += bytes;
    most_held = now_held > most_held ? now_held : most_held;
    return EXF_OK;
}

exf_code exf_alloc_cuda(void *out, size_t n, size_t size, const char *what, exf_err *err)
{
    void *p = nullptr;
    memcpy(out, &p, sizeof p);
    if (size && n > SIZE_MAX / size) return exf_fail(err, EXF_NOSPACE, "size overflow: %zu x %zu for %s", n, size, what);
    size_t bytes = n * size ? n * size : 1;
    cudaError_t e = cudaMalloc(&p, bytes);
    if (e == cudaSuccess) e = cudaMemset(p, 0, bytes);
    if (e == cudaSuccess) e = cudaDeviceSynchronize(); /* queues do not wait for the default stream */
    if (e != cudaSuccess) {
        cudaGetLastError();
        cudaFree(p);
        return exf_fail(err, e == cudaErrorMemoryAllocation ? EXF_NOSPACE : EXF_DEVICE, "GPU memory: %.1f MiB for %s: %s",
                        (double)bytes / 1048576.0, what, cudaGetErrorString(e));
    }
    exf_code rc = keep(p, bytes, what, err);
    if (rc == EXF_OK) memcpy(out, &p, sizeof p);
    return rc;
}

void exf_free_cuda(void *p)
{
    if (!p) return;
    std::lock_guard<std::mutex> lock(guard);
    auto at = held.find(p);
    if (at != held.end()) {
        now_held -= at->second;
        held.erase(at);
    }
    cudaFree(p);
}

exf_code exf_alloc_staging_cuda(void *out, size_t bytes, const char *what, exf_err *err)
{
    void *p = nullptr;
    cudaError_t e = cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocDefault);
    if (e == cudaSuccess) memset(p, 0, bytes);
    memcpy(out, &p, sizeof p);
    if (e == cudaSuccess) return EXF_OK;
    cudaGetLastError();
    return exf_fail(err, e == cudaErrorMemoryAllocation ? EXF_NOSPACE : EXF_DEVICE, "pinned memory: %.1f MiB for %s: %s",
                    (double)bytes / 1048576.0, what, cudaGetErrorString(e));
}

void exf_free_staging_cuda(void *p)
{
    if (p) cudaFreeHost(p);
}

exf_code exf_pin_cuda(void *memory, size_t bytes, const char *what, exf_err *err)
{
    cudaError_t e = cudaHostRegister(memory, bytes, cudaHostRegisterDefault);
    if (e == cudaSuccess) return EXF_OK;
    cudaGetLastError();
    return exf_fail(err, e == cudaErrorMemoryAllocation ? EXF_NOSPACE : EXF_DEVICE, "pinned memory: %.1f MiB for %s: %s",
                    (double)bytes / 1048576.0, what, cudaGetErrorString(e));
}

void exf_unpin_cuda(void *memory)
{
    cudaHostUnregister(memory);
}

void exf_memory_cuda(uint64_t *now, uint64_t *peak)
{
    std::lock_guard<std::mutex> lock(guard);
    *now = now_held;
    *peak = most_held;
}

void exf_memory_reset_peak_cuda(void)
{
    std::lock_guard<std::mutex> lock(guard);
    most_held = now_held;
}

exf_code exf_memory_left_cuda(uint64_t *bytes, exf_err *err)
{
    size_t free = 0, total = 0;
    cudaError_t e = cudaMemGetInfo(&free, &total);
    *bytes = free;
    return e == cudaSuccess ? EXF_OK : exf_fail(err, EXF_DEVICE, "GPU memory: %s", cudaGetErrorString(e));
}
