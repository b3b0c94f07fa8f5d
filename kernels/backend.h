/* backend.h - exf_backend is a table of operations and the memory on which they work.
 *
 * There are two: `cpu`, the plain reference in every build, and `cuda`.  The forward pass is
 * written once, against this table.  The header of an operation (linear/linear.h,
 * attention/attention.h, ...) specifies what it computes, its shapes and numerics, for both backends.
 *
 * Arrays named in an operation are in the backend's memory (alloc).  Operations are
 * queued and run in order; the queue keeps their first failure, which finish(), download()
 * and first_not_finite() return.  A CUDA queue is a CUDA stream with its cuBLAS handle.
 * A queue serves one thread. */
#ifndef EXF_KERNELS_BACKEND_H
#define EXF_KERNELS_BACKEND_H
#include "base/err.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/compressed.h"
#include "kernels/fold/correction.h"
#include "kernels/fold/norm_head.h"
#include "kernels/fold/route_fold.h"
#include "kernels/linear/linear.h"
#include "kernels/moe/moe.h"
#include "kernels/operation.h"
#include "kernels/recurrent/delta_rule.h"
#include "kernels/residual/hyper_connections.h"
#include "kernels/rows/rows.h"
#include "kernels/statistics/divergence.h"
#include "kernels/statistics/layer_sums.h"
#include "kernels/statistics/lowrank_sums.h"
#include "kernels/statistics/norm_products.h"
#include "kernels/statistics/shared_sums.h"
#include "kernels/statistics/subspace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The operations that only a GPU has.  conv_delta_rule, its workspace and compressed_heads are fused forms of
 * operations that every backend has; they may be NULL. */
typedef struct {
    /* Returns 1 if queues can compute in bfloat16: compute capability 8.0 and later. */
    int (*has_bf16)(void);
    /* Chooses by which instructions kernels multiply, before the first queue opens; EXF_DEVICE where the device or this build
     * has them not.  The device's name then says mma.sync. */
    exf_code (*choose_tensor_cores)(exf_tensor_cores choice, exf_err *err);
    /* Multiplies zeros, so that the matrix library is loaded when a pass makes its first products. */
    void (*warm_up_products)(exf_queue *q);
    /* Host memory that copies run from at full speed and beside the queues. */
    exf_code (*alloc_staging)(void *out, size_t bytes, const char *what, exf_err *err);
    void (*free_staging)(void *p);
    /* Pins memory of another owner, page-aligned, so that copies run from it as from staging memory; ends that. */
    exf_code (*pin)(void *memory, size_t bytes, const char *what, exf_err *err);
    void (*unpin)(void *memory);
    /* Bytes allocated by alloc() and not freed, now and at peak, including what a process holds
     * on the device before its first allocation. */
    void (*memory)(uint64_t *now, uint64_t *peak);
    void (*memory_reset_peak)(void); /* the peak counts from this call */
    /* Bytes that alloc() could still allocate, as the driver reports them. */
    exf_code (*memory_left)(uint64_t *bytes, exf_err *err);
    /* Operations queued on q from now on wait for all that were queued on `before` so far. */
    void (*wait_for)(exf_queue *q, exf_queue *before);
    /* *ns, in memory of alloc_staging, becomes the nanoseconds of the GPU's clock, never 0, when all that was queued on q
     * before is done; the host may read it at any time and does not wait. */
    void (*stamp)(exf_queue *q, uint64_t *ns);
    /* linear.h; *bad becomes 1 where a value is not finite. */
    void (*dequantize)(exf_queue *q, void *to, exf_number number, const exf_device_coded_rows *rows, int *bad);
    void (*check_bf16)(exf_queue *q, const uint16_t *x, size_t n, int *bad);
    /* rows.h */
    void (*round_rows)(exf_queue *q, uint16_t *out, int ldo, const float *x, int ldx, int n_rows, int n);
    void (*widen)(exf_queue *q, float *out, const uint16_t *x, size_t n);
    void (*rmsnorm_rounded)(exf_queue *q, uint16_t *y, float *y32, const float *x, const float *w, int n_rows, int n, double eps);
    void (*rmsnorm_split)(exf_queue *q, uint16_t *y, float *squares, const float *x, const float *w, int n_rows, int n, double eps);
    void (*gate_heads_rounded)(exf_queue *q, uint16_t *y, const float *x, const float *gate, const float *w, int n_rows, int n,
                               double eps);
    /* delta_rule.h: causal_conv_silu on [q | k | v], l2norm_heads of q (scaled by key_dim^-1/2) and k, then
     * the rule.  qkv: rows of s->ldq = ldk = ldv; overwritten. */
    size_t (*conv_delta_rule_workspace)(const exf_delta_shape *s, int width); /* floats */
    void (*conv_delta_rule)(exf_queue *q, float *out, float *qkv, const float *taps, int width, const float *decay,
                            const float *beta, const exf_delta_shape *s, double eps, float *workspace);
    /* compressed.h in bfloat16, between two products: every head of query normed (rows.h, no weight)
     * and rotated, attended, rotated back, rounded to bfloat16.  out and query [n_rows, n_heads, d]; workspace as
     * the attention's.  fit: 1 if the device supports it for these shapes. */
    int (*compressed_heads_fit)(const exf_compressed_attention_shape *s, const exf_rope_shape *r);
    void (*compressed_heads)(exf_queue *q, uint16_t *out, const float *query, const exf_compressed_keys *k,
                             const exf_compressed_attention_shape *s, const exf_rope_shape *r, const float *cosine,
                             const float *sine, double eps, float *workspace);
    void (*embed)(exf_queue *q, float *out, exf_matrix table, const int32_t *tokens, size_t n_tokens, int width, int streams);
    void (*watch_finite)(exf_queue *q, uint64_t *least, const float *x, size_t n, uint64_t base);
    void (*score_rows)(exf_queue *q, const exf_score_call *c); /* divergence.h */
    void (*output_errors)(exf_queue *q, exf_output_errors *sums, const float *a, const float *b, int n_rows, int n);
    void (*row_energies)(exf_queue *q, exf_row_energies *sums, const float *x, int n_rows, int n);
    /* layer_sums.h.  sums: layer_sums_bytes() of alloc's memory; adding from several queues
     * at a time is allowed.  layer_sums_take waits, copies the sums to `to` and zeroes them. */
    size_t (*layer_sums_bytes)(int n_experts);
    void (*layer_sums_add)(exf_queue *q, void *sums, const exf_layer_sums_call *c);
    exf_code (*layer_sums_take)(exf_queue *q, void *sums, const exf_layer_sums *to, const exf_sequence_sums *over, int n_experts,
                                exf_sums_place *place, exf_err *err); /* over NULL: not wanted */
    /* Ends a sequence: the tokens added since the last call (or the last take) are one. */
    void (*layer_sums_close_sequence)(exf_queue *q, void *sums, int n_experts, double scale, uint64_t sequence);
    /* Adds the pair sums so far to those of the half, or takes them from these. */
    void (*layer_sums_turn_half)(exf_queue *q, void *sums, int n_experts, int add);
    /* Copy cells before the terms of some tokens are added, and give what was added to them since. */
    void (*layer_sums_cells_before)(exf_queue *q, const void *sums, const exf_cells_call *c);
    void (*layer_sums_cells_added)(exf_queue *q, const void *sums, const exf_cells_call *c);
    size_t (*gram_matrices_bytes)(int n_experts, int n_products);
    void (*gram_matrices)(exf_queue *q, const exf_gram_call *c);
    /* Must not run while another queue adds to the same sums. */
    void (*layer_sums_add_common_input)(exf_queue *q, void *sums, const exf_common_input_call *c);
    void (*diagonal_add)(exf_queue *q, const exf_diagonal_sums *to, const exf_diagonal_call *c);
    void (*lowrank_add)(exf_queue *q, const exf_lowrank_sums *to, const exf_lowrank_call *c); /* lowrank_sums.h */
    /* shared_sums.h */
    exf_code (*share_memory)(exf_memory_handle *out, void *memory, exf_err *err);
    exf_code (*open_memory)(void **out, const exf_memory_handle *h, exf_err *err);
    void (*close_memory)(void *opened);
    void (*add_exact)(exf_queue *q, exf_exact *to, const exf_exact *from, size_t n, uint64_t *wrapped);
    void (*add_integers)(exf_queue *q, int64_t *to, const int64_t *from, size_t n, uint64_t *wrapped);
    void (*residual_moments)(exf_queue *q, const exf_residual_call *c);
    void (*subspace_iterate)(exf_queue *q, const exf_subspace_call *c, int iterations); /* subspace.h */
    void (*subspace_rotate)(exf_queue *q, const exf_subspace_call *c, const double *rotation, int r);
    /* norm_products.h */
    void (*norm_products_add)(exf_queue *q, const exf_norm_products_sums *to, const exf_norm_products_call *c);
    void (*slot_logits)(exf_queue *q, float *out, const float *logits, const int32_t *ids, int n_tokens, int n_experts, int top_k);
    /* correction.h */
    void (*correct_routes)(exf_queue *q, float *routed, const exf_correction_tables *t, const exf_correction_call *c);
    /* norm_head.h */
    void (*norm_head_rows)(exf_queue *q, uint16_t *rows, const float *basis, int n_layers, int d_model, int directions);
    void (*predict_norms)(exf_queue *q, const exf_norm_head_call *c);
    /* route_fold.h */
    exf_fold_status (*prefill_routes)(exf_queue *q, const exf_run_routes *r, const exf_prefill_call *c);
    exf_fold_status (*step_routes)(exf_queue *q, const exf_run_routes *r, const exf_steps_call *c);
    void (*count_row_experts)(exf_queue *q, uint64_t *count, const exf_run_routes *r);
    void (*count_step_experts)(exf_queue *q, uint64_t *count, const exf_run_routes *r, const exf_route_steps *s, int n_experts);
    void (*count_slots)(exf_queue *q, uint64_t *count, const int32_t *ids, size_t n);
    void (*carry)(exf_queue *q, void *to, const void *from, size_t bytes);
} exf_gpu_operations;

typedef struct exf_backend {
    const char *name; /* "cpu", "cuda" */
    const exf_gpu_operations *gpu; /* NULL: arrays are ordinary memory, upload and download copy */

    /* ---- queues and memory ------------------------------------------------ */
    exf_code (*open)(exf_queue **q, exf_compute compute, exf_err *err); /* EXF_DEVICE: the device cannot compute so */
    void (*close)(exf_queue *q); /* NULL is allowed */
    exf_code (*finish)(exf_queue *q, exf_err *err);
    /* Returns the device and libraries on which the numbers depend: "OpenBLAS 0.3.21 SkylakeX", "NVIDIA H200, CUDA 13.0". */
    const char *(*device)(void);
    exf_code (*alloc)(void *out, size_t n, size_t size, const char *what, exf_err *err);
    void (*free)(void *p);
    void (*upload)(exf_queue *q, void *to, const void *from_host, size_t bytes);
    exf_code (*download)(exf_queue *q, void *to_host, const void *from, size_t bytes, exf_err *err); /* waits */
    void (*copy)(exf_queue *q, void *to, const void *from, size_t bytes); /* queued; either side may be alloc_staging's */
    void (*zero)(exf_queue *q, void *p, size_t bytes);

    /* ---- operations, in the header that is named; workspaces are in floats, but bytes for experts ---- */

    /* linear.h */
    exf_gemm_xwt_op *gemm_xwt;
    exf_gemm_xwt_many_op *gemm_xwt_many;
    exf_gemm_xw_op *gemm_xw;
    /* rows.h */
    exf_rmsnorm_op *rmsnorm;
    exf_layernorm_op *layernorm;
    exf_scale_rows_op *scale_rows;
    exf_add_bias_op *add_bias;
    exf_clamp_op *clamp;
    exf_copy_columns_op *copy_columns;
    exf_repeat_columns_op *repeat_columns;
    exf_sigmoid_gate_op *sigmoid_gate;
    exf_swiglu_op *swiglu;
    exf_add_op *add;
    exf_scale_op *scale;
    exf_soft_cap_op *soft_cap;
    exf_gather_rows_op *gather_rows;
    exf_switch_weights_op *switch_weights;
    /* Index of the first element that is not finite, -1 if all are; waits. */
    exf_code (*first_not_finite)(exf_queue *q, const float *x, size_t n, int64_t *at, exf_err *err);
    /* attention.h */
    exf_rope_apply_op *rope;
    exf_attention_workspace_op *attention_workspace;
    exf_attention_op *attention;
    /* delta_rule.h */
    exf_causal_conv_workspace_op *causal_conv_workspace;
    exf_causal_conv_silu_op *causal_conv_silu;
    exf_delta_gates_op *delta_gates;
    exf_l2norm_heads_op *l2norm_heads;
    exf_delta_rule_workspace_op *delta_rule_workspace;
    exf_delta_rule_op *delta_rule;
    /* compressed.h */
    exf_compressed_attention_workspace_op *compressed_attention_workspace;
    exf_compressed_attention_op *compressed_attention;
    exf_compressor_op *compressor;
    exf_indexer_workspace_op *indexer_workspace;
    exf_indexer_op *indexer;
    /* hyper_connections.h */
    exf_hyper_pre_op *hyper_pre;
    exf_hyper_post_op *hyper_post;
    exf_hyper_input_op *hyper_input;
    exf_hyper_head_op *hyper_head;
    /* moe.h */
    exf_router_op *router;
    exf_experts_workspace_op *experts_workspace;
    exf_experts_op *experts;
    exf_moe_sum_op *moe_sum;
    exf_reuse_outputs_op *reuse_outputs;
} exf_backend;

extern const exf_backend exf_backend_cpu;
/* The CUDA backend, or NULL and a reason in err: not compiled in, no device, a
 * device that this build has no code for. */
const exf_backend *exf_backend_cuda(exf_err *err);

/* Measures how fast a backend multiplies matrices, for a plan's estimated time and a benchmark's lower bound: FLOP/s of one
 * queue (one thread of the CPU, or the GPU) on y = x w^T with x [rows, 1024], w [768, 1024], a layer's product: rows is 128
 * where memory is the host's, as a worker's block is, else 8192.  Takes a few hundredths of a second. */
exf_code exf_gemm_rate(const exf_backend *backend, exf_compute compute, double *flops_per_second, exf_err *err) EXF_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
