/* cuda_queue.cuh - the queue of the CUDA backend: a CUDA stream, a cuBLAS handle and the first failure.
 *
 * Every launch and call is checked; after a failure the queue launches nothing until exf_finish_cuda() has returned it. */
#ifndef EXF_KERNELS_CUDA_QUEUE_CUH
#define EXF_KERNELS_CUDA_QUEUE_CUH
#include "base/err.h"
#include "kernels/operation.h"

#include <cublas_v2.h> /* types only */
#include <cuda_runtime.h>

/* The functions of cuBLAS that products call.  It is loaded when the first queue opens: it brings 100 MB of relocations
 * that a run on the CPU should not pay for, and a machine without it can run that. */
struct exf_cublas {
    decltype(&cublasCreate_v2) create;
    decltype(&cublasDestroy_v2) destroy;
    decltype(&cublasSetStream_v2) set_stream;
    decltype(&cublasGetStatusString) status_string;
    cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void *alpha,
                           const void *a, cudaDataType, int lda, const void *b, cudaDataType, int ldb, const void *beta, void *c,
                           cudaDataType, int ldc, cublasComputeType_t, cublasGemmAlgo_t); /* cublasGemmEx, which C++ overloads */
    cublasStatus_t (*gemm_batched)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void *alpha,
                                   const void *a, cudaDataType, int lda, long long a_step, const void *b, cudaDataType, int ldb,
                                   long long b_step, const void *beta, void *c, cudaDataType, int ldc, long long c_step, int count,
                                   cublasComputeType_t, cublasGemmAlgo_t); /* cublasGemmStridedBatchedEx */
};

struct exf_queue {
    const exf_cublas *cublas;
    cudaStream_t stream;
    cublasHandle_t blas;
    cublasComputeType_t products; /* CUBLAS_COMPUTE_32F_FAST_16BF where the mixers' products are rounded */
    int multiprocessors;
    uint16_t *buffer; /* what exf_queue_buffer() gives; NULL until it is asked for */
    exf_err err;      /* code EXF_OK: none yet */
};

/* Bytes of a queue's buffer, and bytes after them that the alignment of what lies in it may take. */
enum { EXF_BUFFER_BYTES = 64 << 20, EXF_BUFFER_TAIL = 1024 };

/* Returns the queue's memory for what one operation keeps between its launches (terms of a product's operands, products): the
 * next operation writes over it.  Allocates it at the first call; NULL after a failure. */
uint16_t *exf_queue_buffer(exf_queue *q);
/* Creates the queue's cuBLAS handle at its first product; 1 if it has one. */
int exf_cublas_ready(exf_queue *q);
/* Waits for the queue; returns its first failure and forgets it. */
exf_code exf_finish_cuda(exf_queue *q, exf_err *err);
/* Note a failure, if it is the first; return 1 if `e` is success. */
int exf_cuda_note(exf_queue *q, cudaError_t e, const char *what);
int exf_cublas_note(exf_queue *q, cublasStatus_t e, const char *what);

static inline unsigned exf_blocks(size_t n, unsigned threads)
{
    size_t blocks = (n + threads - 1) / threads;
    return (unsigned)(blocks < 1 ? 1 : blocks > 0x7fffffff ? 0x7fffffff : blocks);
}

/* Returns 1 if rows that start at p and are ld floats apart can be read 16 bytes at a time. */
static inline bool exf_aligned16(const void *p, int ld)
{
    return (uintptr_t)p % 16 == 0 && ld % 4 == 0;
}

/* EXF_LAUNCH(q, "rmsnorm", kernel, grid, block, shared, args...): launches on the queue's CUDA stream and notes a refusal.
 * Callers do not launch empty grids. */
#define EXF_LAUNCH(q, name, kernel, grid, block, shared, ...)                    \
    do {                                                                         \
        if ((q)->err.code == EXF_OK) {                                           \
            kernel<<<(grid), (block), (shared), (q)->stream>>>(__VA_ARGS__);     \
            exf_cuda_note((q), cudaGetLastError(), (name));                      \
        }                                                                        \
    } while (0)
#endif
