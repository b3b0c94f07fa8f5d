/* backend_cpu.c - the table of CPU kernels; queues do nothing, memory is the host's.  And the rate of a table's products. */
#include "kernels/backend.h"

#include "base/log.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

/* One queue for everybody: there is nothing in it. */
struct exf_queue {
    int unused;
};

static exf_code open_queue(exf_queue **q, exf_compute compute, exf_err *err)
{
    static exf_queue only;
    if (compute != EXF_COMPUTE_F32) return exf_fail(err, EXF_DEVICE, "runtime.compute: bf16: the cpu backend computes in f32 only");
    *q = &only;
    return EXF_OK;
}

static void close_queue(exf_queue *q)
{
    (void)q;
}

static exf_code finish(exf_queue *q, exf_err *err)
{
    (void)q;
    (void)err;
    return EXF_OK;
}

static void upload(exf_queue *q, void *to, const void *from, size_t bytes)
{
    (void)q;
    if (bytes) memcpy(to, from, bytes);
}

static exf_code download(exf_queue *q, void *to, const void *from, size_t bytes, exf_err *err)
{
    (void)err;
    upload(q, to, from, bytes);
    return EXF_OK;
}

static void zero(exf_queue *q, void *p, size_t bytes)
{
    (void)q;
    if (bytes) memset(p, 0, bytes);
}

static exf_code first_not_finite(exf_queue *q, const float *x, size_t n, int64_t *at, exf_err *err)
{
    (void)q;
    (void)err;
    size_t i = 0;
    while (i < n && isfinite(x[i])) i++;
    *at = i < n ? (int64_t)i : -1;
    return EXF_OK;
}

const exf_backend exf_backend_cpu = {
    .name = "cpu",
    .open = open_queue,
    .close = close_queue,
    .finish = finish,
    .device = exf_gemm_library_cpu,
    .alloc = exf_mem_new,
    .free = exf_mem_free,
    .upload = upload,
    .download = download,
    .copy = upload,
    .zero = zero,
    .gemm_xwt = exf_gemm_xwt_cpu,
    .gemm_xwt_many = exf_gemm_xwt_many_cpu,
    .gemm_xw = exf_gemm_xw_cpu,
    .rmsnorm = exf_rmsnorm_cpu,
    .layernorm = exf_layernorm_cpu,
    .scale_rows = exf_scale_rows_cpu,
    .add_bias = exf_add_bias_cpu,
    .clamp = exf_clamp_cpu,
    .copy_columns = exf_copy_columns_cpu,
    .repeat_columns = exf_repeat_columns_cpu,
    .sigmoid_gate = exf_sigmoid_gate_cpu,
    .swiglu = exf_swiglu_cpu,
    .add = exf_add_cpu,
    .scale = exf_scale_cpu,
    .soft_cap = exf_soft_cap_cpu,
    .gather_rows = exf_gather_rows_cpu,
    .switch_weights = exf_switch_weights_cpu,
    .first_not_finite = first_not_finite,
    .rope = exf_rope_apply_cpu,
    .attention_workspace = exf_attention_workspace_cpu,
    .attention = exf_attention_cpu,
    .causal_conv_workspace = exf_causal_conv_workspace_cpu,
    .causal_conv_silu = exf_causal_conv_silu_cpu,
    .delta_gates = exf_delta_gates_cpu,
    .l2norm_heads = exf_l2norm_heads_cpu,
    .delta_rule_workspace = exf_delta_rule_workspace_cpu,
    .delta_rule = exf_delta_rule_cpu,
    .compressed_attention_workspace = exf_compressed_attention_workspace_cpu,
    .compressed_attention = exf_compressed_attention_cpu,
    .compressor = exf_compressor_cpu,
    .indexer_workspace = exf_indexer_workspace_cpu,
    .indexer = exf_indexer_cpu,
    .hyper_pre = exf_hyper_pre_cpu,
    .hyper_post = exf_hyper_post_cpu,
    .hyper_input = exf_hyper_input_cpu,
    .hyper_head = exf_hyper_head_cpu,
    .router = exf_router_cpu,
    .experts_workspace = exf_experts_workspace_cpu,
    .experts = exf_experts_cpu,
    .moe_sum = exf_moe_sum_cpu,
    .reuse_outputs = exf_reuse_outputs_cpu,
};

#if !EXF_HAVE_CUDA
const exf_backend *exf_backend_cuda(exf_err *err)
{
    exf_fail(err, EXF_DEVICE, "this build has no CUDA side: it was made without nvcc");
    return NULL;
}
#endif

/* ---- the rate of products, of either backend ------------------------------------------------- */

/* Zeros are zeros in either type. */
static exf_matrix matrix_of(const float *p, exf_compute compute)
{
    return compute == EXF_COMPUTE_BF16 ? exf_bf16((const uint16_t *)p) : exf_f32(p);
}

exf_code exf_gemm_rate(const exf_backend *b, exf_compute compute, double *flops_per_second, exf_err *err)
{
    enum { N = 768, K = 1024, ROUNDS = 8 };
    const int m = !b->gpu ? 128 : 8192;
    exf_queue *q = NULL;
    float *x = NULL, *w = NULL, *y = NULL;
    exf_code rc;
    EXF_TRY(exf_blas_reserve_cpu(1, err));
    EXF_TRY(b->open(&q, compute, err));
    EXF_TRY(b->alloc(&x, (size_t)m * K, sizeof *x, "rate measurement", err));
    EXF_TRY(b->alloc(&w, (size_t)N * K, sizeof *w, "rate measurement", err));
    EXF_TRY(b->alloc(&y, (size_t)m * N, sizeof *y, "rate measurement", err));
    b->zero(q, x, (size_t)m * K * sizeof *x); /* the rate does not depend on the numbers, but NaNs may be slow */
    b->zero(q, w, (size_t)N * K * sizeof *w);
    exf_matrix xo = matrix_of(x, compute), wo = matrix_of(w, compute);
    b->gemm_xwt(q, y, N, xo, K, wo, K, m, N, K, 1, 0); /* the first one loads the library */
    EXF_TRY(b->finish(q, err));
    double start = exf_clock();
    for (int i = 0; i < ROUNDS; i++) b->gemm_xwt(q, y, N, xo, K, wo, K, m, N, K, 1, 0);
    EXF_TRY(b->finish(q, err));
    *flops_per_second = 2.0 * m * N * K * ROUNDS / (exf_clock() - start);
out:
    if (y) b->free(y);
    if (w) b->free(w);
    if (x) b->free(x);
    b->close(q);
    return rc;
}
