/* cuda_queue.cuh - the queue of the CUDA backend: a CUDA stream, a cuBLAS handle and the
 * first failure.  Every launch and call is checked; after a failure the queue launches
 * nothing until finish() has returned it. */
#ifndef EXF_KERNELS_CUDA_QUEUE_CUH
#define EXF_KERNELS_CUDA_QUEUE_CUH
#include "kernels/backend.h"
#include "kernels/rows/device_rows.h"
#include "kernels/rows/rounding.h"

#include <cublas_v2.h> /* types only, see exf_cublas */
#include <cuda_runtime.h>

/* cuBLAS is loaded when the first queue opens: it brings 100 MB of relocations that
 * a run on the CPU should not pay for, and a machine without it can run that. */
struct exf_cublas {
    decltype(&cublasCreate_v2) create;
    decltype(&cublasDestroy_v2) destroy;
    decltype(&cublasSetStream_v2) set_stream;
    decltype(&cublasGetStatusString) status_string;
    cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void *alpha, const void *a,
                           cudaDataType, int lda, const void *b, cudaDataType, int ldb, const void *beta, void *c, cudaDataType, int ldc,
                           cublasComputeType_t, cublasGemmAlgo_t); /* cublasGemmEx, which C++ overloads */
    cublasStatus_t (*gemm_batched)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void *alpha, const void *a,
                                   cudaDataType, int lda, long long a_step, const void *b, cudaDataType, int ldb, long long b_step,
                                   const void *beta, void *c, cudaDataType, int ldc, long long c_step, int count, cublasComputeType_t,
                                   cublasGemmAlgo_t); /* cublasGemmStridedBatchedEx */
};
/* NULL and a reason in err if it cannot be loaded. */
const exf_cublas *exf_cublas_load(exf_err *err);

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

/* Any kernel of this build: asking for its attributes tells whether the device has
 * code it can run. */
const void *exf_capability_kernel(void);

/* The operations, each in its <op>_cuda.cu; specified in the operation's header. */
extern "C" {
void exf_product_xwt_cuda(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw, int m, int n, int k, float alpha, float beta);
void exf_gemm_xwt_cuda(exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k, float alpha, float beta);
void exf_product_xwt_many_cuda(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw, const exf_product_steps *s, int m, int n, int k);
void exf_gemm_xw_cuda(exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k, float alpha, float beta);
void exf_rmsnorm_cuda(exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int n_rows, int n, double eps);
void exf_add_bias_cuda(exf_queue *q, float *y, const float *bias, int n_rows, int n);
void exf_copy_columns_cuda(exf_queue *q, float *out, int ldo, const float *x, int ldx, int n_rows, int n);
void exf_repeat_columns_cuda(exf_queue *q, float *out, int ldo, int count, int step, const float *x, int ldx, int n_rows, int n);
void exf_sigmoid_gate_cuda(exf_queue *q, float *y, const float *gate, int n_rows, int d, int stride);
void exf_swiglu_cuda(exf_queue *q, float *g, const float *u, size_t n, float limit);
void exf_add_cuda(exf_queue *q, float *y, const float *x, size_t n);
void exf_gather_rows_cuda(exf_queue *q, float *out, const float *x, const int32_t *row, int n_rows, int width);
exf_code exf_first_not_finite_cuda(exf_queue *q, const float *x, size_t n, int64_t *at, exf_err *err);
void exf_rope_apply_cuda(exf_queue *q, float *x, const exf_rope_shape *s, const float *cosine, const float *sine);
size_t exf_attention_workspace_cuda(const exf_attention_shape *s);
void exf_attention_cuda(exf_queue *q, float *out, const float *query, const float *k, const float *v, const exf_attention_shape *s, float *workspace);
size_t exf_causal_conv_workspace_cuda(int channels, int width);
void exf_causal_conv_silu_cuda(exf_queue *q, float *x, int ldx, const float *w, int n_tokens, int channels, int width, float *workspace);
void exf_delta_gates_cuda(exf_queue *q, float *a, float *b, const float *a_log, const float *dt_bias, int n_tokens, int n_heads);
void exf_l2norm_heads_cuda(exf_queue *q, float *x, int ldx, int n_tokens, int n_heads, int d, double eps, double scale);
size_t exf_delta_rule_workspace_cuda(const exf_delta_shape *s);
void exf_delta_rule_cuda(exf_queue *q, float *out, const float *query, const float *k, const float *v, const float *decay, const float *beta, const exf_delta_shape *s, float *workspace);
size_t exf_conv_delta_rule_workspace_cuda(const exf_delta_shape *s, int width);
void exf_conv_delta_rule_cuda(exf_queue *q, float *out, float *qkv, const float *taps, int width, const float *decay, const float *beta, const exf_delta_shape *s, double eps, float *workspace);
size_t exf_compressed_attention_workspace_cuda(int n_heads, int n_rows, int n_tokens, int window, int ratio);
void exf_compressed_attention_cuda(exf_queue *q, float *out, const float *query, const exf_compressed_keys *k, const exf_compressed_attention_shape *s, float *workspace);
int exf_compressed_heads_fit_cuda(const exf_compressed_attention_shape *s, const exf_rope_shape *r);
void exf_compressed_heads_cuda(exf_queue *q, uint16_t *out, const float *query, const exf_compressed_keys *k, const exf_compressed_attention_shape *s, const exf_rope_shape *r, const float *cosine, const float *sine, double eps, float *workspace);
void exf_compressor_cuda(exf_queue *q, float *out, const float *kv, const float *gate, const float *ape, const exf_compressor_shape *s);
size_t exf_indexer_workspace_cuda(int n_rows, int n_entries);
void exf_indexer_cuda(exf_queue *q, unsigned char *chosen, const float *query, const float *weights, const float *keys, const exf_indexer_shape *s, float *workspace);
void exf_hyper_pre_cuda(exf_queue *q, float *u, float *mixing, const float *x, const exf_hyper_shape *s);
void exf_hyper_post_cuda(exf_queue *q, float *x, const float *v, const float *mixing, const exf_hyper_shape *s);
void exf_hyper_head_cuda(exf_queue *q, float *u, const float *x, const exf_hyper_shape *s);
void exf_router_cuda(exf_queue *q, int32_t *ids, float *weights, const float *logits, const int32_t *tokens, int n_tokens, const exf_router_rules *r, double *scratch);
void exf_dequantize_cuda(exf_queue *q, void *to, exf_number number, const exf_device_coded_rows *c, int *bad);
void exf_check_bf16_cuda(exf_queue *q, const uint16_t *x, size_t n, int *bad);
void exf_score_rows_cuda(exf_queue *q, const exf_score_call *c);
size_t exf_experts_workspace_cuda(const exf_expert_shape *s, exf_number x);
void exf_experts_cuda(exf_queue *q, exf_matrix outputs, exf_matrix x, const int32_t *ids, const exf_expert_matrices *m, const exf_expert_shape *s, void *workspace);
size_t exf_layer_sums_bytes_cuda(int n_experts);
void exf_layer_sums_add_cuda(exf_queue *q, void *sums, const exf_layer_sums_call *c);
exf_code exf_layer_sums_take_cuda(exf_queue *q, void *sums, const exf_layer_sums *to, const exf_sequence_sums *over, int n_experts, void *host, exf_err *err);
void exf_layer_sums_close_sequence_cuda(exf_queue *q, void *sums, int n_experts, double scale, uint64_t sequence);
size_t exf_gram_matrices_bytes_cuda(int n_experts, int n_products);
void exf_gram_matrices_cuda(exf_queue *q, const exf_gram_call *c);
void exf_layer_sums_add_common_input_cuda(exf_queue *q, void *sums, const exf_common_input_call *c);
void exf_diagonal_add_cuda(exf_queue *q, const exf_diagonal_sums *to, const exf_diagonal_call *c);
void exf_correct_routes_cuda(exf_queue *q, float *routed, const exf_correction_tables *t, const exf_correction_call *c);
}
/* backend_memory.cu */
exf_code exf_alloc_cuda(void *out, size_t n, size_t size, const char *what, exf_err *err);
void exf_free_cuda(void *p);
exf_code exf_alloc_staging_cuda(void *out, size_t bytes, const char *what, exf_err *err);
void exf_free_staging_cuda(void *p);
void exf_memory_cuda(uint64_t *now, uint64_t *peak);
void exf_memory_reset_peak_cuda(void);
exf_code exf_memory_left_cuda(uint64_t *bytes, exf_err *err);
#endif
