/* cuda_queue.cuh - the queue of the CUDA backend: a CUDA stream, a cuBLAS handle and the
 * first failure.  Every launch and call is checked; after a failure the queue launches
 * nothing until finish() has returned it. */
#ifndef EXF_KERNELS_CUDA_QUEUE_CUH
#define EXF_KERNELS_CUDA_QUEUE_CUH
#include "base/err.h"
#include "kernels/linear/cublas_load.cuh"
#include "kernels/queue.h"

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

struct exf_queue {
    const exf_cublas *cublas;
    cudaStream_t stream;
    cublasHandle_t blas;
    cublasComputeType_t products; /* CUBLAS_COMPUTE_32F_FAST_16BF where the mixers' products are rounded */
    int multiprocessors;
    uint16_t *rounded; /* EXF_ROUNDED_BYTES for what a bfloat16 product multiplies; NULL until a product needs it */
    exf_err err;       /* code EXF_OK: none yet */
};

enum { EXF_ROUNDED_BYTES = 64 << 20 };

/* Creates the queue's cuBLAS handle at its first product; 1 if it has one. */
int exf_cublas_ready(exf_queue *q);
/* The table's finish(). */
exf_code exf_finish_cuda(exf_queue *q, exf_err *err);
/* Notes a failure, if it is the first; 1 if `e` is success. */
int exf_cuda_note(exf_queue *q, cudaError_t e, const char *what);
int exf_cublas_note(exf_queue *q, cublasStatus_t e, const char *what);

static inline unsigned exf_blocks(size_t n, unsigned threads)
{
    size_t blocks = (n + threads - 1) / threads;
    return (unsigned)(blocks < 1 ? 1 : blocks > 0x7fffffff ? 0x7fffffff : blocks);
}

/* EXF_LAUNCH(q, "rmsnorm", kernel, grid, block, shared, args...): launches on the
 * queue's CUDA stream and notes a refusal.  Callers do not launch empty grids. */
#define EXF_LAUNCH(q, name, kernel, grid, block, shared, ...)                    \
    do {                                                                         \
        if ((q)->err.code == EXF_OK) {                                           \
            kernel<<<(grid), (block), (shared), (q)->stream>>>(__VA_ARGS__);     \
            exf_cuda_note((q), cudaGetLastError(), (name));                      \
        }                                                                        \
    } while (0)
#endif
