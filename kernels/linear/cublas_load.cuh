/* cublas_load.cuh - exf_cublas is the part of cuBLAS that products use, found at run time. */
#ifndef EXF_KERNELS_CUBLAS_LOAD_CUH
#define EXF_KERNELS_CUBLAS_LOAD_CUH
#include "base/err.h"

#include <cublas_v2.h> /* types only */

/* cuBLAS is loaded when the first queue opens: it brings 100 MB of relocations that
 * a run on the CPU should not pay for, and a machine without it can run that. */
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
/* NULL and a reason in err if it cannot be loaded. */
const exf_cublas *exf_cublas_load(exf_err *err);
#endif
