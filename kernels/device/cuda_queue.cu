/* cuda_queue.cu - the first failure of a queue, cuBLAS, the GPU's memory and its clock; see cuda_queue.cuh. */
#include "kernels/device/cuda_queue.cuh"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <sys/mman.h>
#include <unordered_map>

/* ---- failures ---------------------------------------------------------------------- */

int exf_cuda_note(exf_queue *q, cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return 1;
    exf_code code = e == cudaErrorMemoryAllocation ? EXF_NOSPACE : EXF_DEVICE;
    if (q->err.code == EXF_OK) exf_fail(&q->err, code, "CUDA: %s: %s", what, cudaGetErrorString(e));
    cudaGetLastError(); /* a refused launch must not be blamed on the next one */
    return 0;
}

int exf_cublas_note(exf_queue *q, cublasStatus_t e, const char *what)
{
    if (e == CUBLAS_STATUS_SUCCESS) return 1;
    if (q->err.code == EXF_OK) exf_fail(&q->err, EXF_DEVICE, "cuBLAS: %s: %s", what, q->cublas->status_string(e));
    return 0;
}

int exf_cublas_ready(exf_queue *q)
{
    if (q->err.code != EXF_OK) return 0;
    if (q->blas) return 1;
    return exf_cublas_note(q, q->cublas->create(&q->blas), "handle") &&
           exf_cublas_note(q, q->cublas->set_stream(q->blas, q->stream), "stream");
}

uint16_t *exf_queue_buffer(exf_queue *q)
{
    if (q->err.code != EXF_OK) return nullptr;
    if (!q->buffer) exf_cuda_note(q, cudaMalloc((void **)&q->buffer, EXF_BUFFER_BYTES + EXF_BUFFER_TAIL), "queue's buffer");
    return q->buffer;
}

exf_code exf_finish_cuda(exf_queue *q, exf_err *err)
{
    exf_cuda_note(q, cudaStreamSynchronize(q->stream), "finish");
    if (q->err.code == EXF_OK) return EXF_OK;
    *err = q->err;
    q->err.code = EXF_OK;
    return err->code;
}

/* ---- cuBLAS, found at run time ------------------------------------------------------- */

/* dlsym gives data pointers; POSIX promises that they hold functions. */
template <class F> static bool find_function(void *library, const char *name, F *f)
{
    *f = reinterpret_cast<F>(dlsym(library, name));
    return *f != nullptr;
}

/* Finds the functions, or says in *err why not. */
static bool load_cublas(exf_cublas *table, exf_err *err)
{
    char name[64];
    snprintf(name, sizeof name, "libcublas.so.%d", CUBLAS_VER_MAJOR);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        exf_fail(err, EXF_DEVICE, "cuBLAS cannot be loaded: %s", dlerror());
        return false;
    }
    bool found = find_function(library, "cublasCreate_v2", &table->create) &&
                 find_function(library, "cublasDestroy_v2", &table->destroy) &&
                 find_function(library, "cublasSetStream_v2", &table->set_stream) &&
                 find_function(library, "cublasGetStatusString", &table->status_string) &&
                 find_function(library, "cublasGemmEx", &table->gemm) &&
                 find_function(library, "cublasGemmStridedBatchedEx", &table->gemm_batched);
    if (!found) exf_fail(err, EXF_DEVICE, "%s lacks a function that is needed", name);
    return found;
}

const exf_cublas *exf_cublas_load(exf_err *err)
{
    static exf_cublas table;
    static exf_err why_not;
    static const bool loaded = load_cublas(&table, &why_not); /* by the first of the threads that ask */
    if (loaded) return &table;
    *err = why_not;
    return nullptr;
}

/* ---- memory -------------------------------------------------------------------------- */

enum : size_t { PAGE = 4096, HUGE_PAGE = 2 << 20 };

static std::mutex guard;
static std::unordered_map<void *, size_t> held;
static uint64_t now_held, most_held;

/* Adds an allocation to the list, or frees it if the list has no memory. */
static exf_code keep_allocation(void *p, size_t bytes, const char *what, exf_err *err)
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

static exf_code refuse_memory(const char *kind, size_t bytes, const char *what, cudaError_t e, exf_err *err)
{
    cudaGetLastError(); /* a refused allocation must not be blamed on the next launch */
    return exf_fail(err, e == cudaErrorMemoryAllocation ? EXF_NOSPACE : EXF_DEVICE, "%s memory: %.1f MiB for %s: %s", kind,
                    (double)bytes / 1048576.0, what, cudaGetErrorString(e));
}

exf_code exf_alloc_cuda(void *out, size_t n, size_t size, const char *what, exf_err *err)
{
    void *p = nullptr;
    memcpy(out, &p, sizeof p);
    if (size && n > SIZE_MAX / size) return exf_fail(err, EXF_NOSPACE, "size overflow: %zu x %zu for %s", n, size, what);
    size_t bytes = n * size ? n * size : 1;
    cudaError_t e = cudaMalloc(&p, bytes);
    /* A stream of this thread's own: queues do not wait for the default stream, and this does not wait for their copies. */
    if (e == cudaSuccess) e = cudaMemsetAsync(p, 0, bytes, cudaStreamPerThread);
    if (e == cudaSuccess) e = cudaStreamSynchronize(cudaStreamPerThread);
    if (e != cudaSuccess) {
        cudaFree(p);
        return refuse_memory("GPU", bytes, what, e, err);
    }
    exf_code rc = keep_allocation(p, bytes, what, err);
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
    size_t page = bytes < HUGE_PAGE ? PAGE : HUGE_PAGE, whole = (bytes / page + 1) * page;
    memcpy(out, &p, sizeof p);
    if (posix_memalign(&p, page, whole) != 0)
        return exf_fail(err, EXF_NOSPACE, "pinned memory: %.1f MiB for %s: out of memory", (double)bytes / 1048576.0, what);
    if (page == HUGE_PAGE) madvise(p, whole, MADV_HUGEPAGE); /* pinning takes time by the page; refused, it takes longer */
    memset(p, 0, whole);
    exf_code rc = exf_pin_cuda(p, whole, what, err);
    if (rc == EXF_OK)
        memcpy(out, &p, sizeof p);
    else
        free(p);
    return rc;
}

void exf_free_staging_cuda(void *p)
{
    if (!p) return;
    exf_unpin_cuda(p);
    free(p);
}

exf_code exf_pin_cuda(void *memory, size_t bytes, const char *what, exf_err *err)
{
    cudaError_t e = cudaHostRegister(memory, bytes, cudaHostRegisterDefault);
    return e == cudaSuccess ? EXF_OK : refuse_memory("pinned", bytes, what, e, err);
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

/* ---- the clock ------------------------------------------------------------------------ */

static __global__ void stamp(volatile unsigned long long *ns)
{
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    *ns = now;
    __threadfence_system();
}

void exf_stamp_cuda(exf_queue *q, uint64_t *ns)
{
    EXF_LAUNCH(q, "stamp", stamp, 1, 1, 0, reinterpret_cast<unsigned long long *>(ns));
}
