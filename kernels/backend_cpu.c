/* backend_cpu.c - the table of CPU kernels; queues do nothing, memory is the host's.  And the rate of a table's products. */
#include "kernels/backend.h"

#include "base/log.h"
#include "base/mem.h"
#include "kernels/rows/rows.h"

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
    *at = exf_first_not_finite_cpu(x, n);
    return EXF_OK;
}

static size_t attention_workspace(const exf_attention_shape *s)
{
    return exf_attention_workspace(s->n_tokens);
}

/* One head at a time. */
static size_t compressed_attention_workspace(int n_heads, int n_rows, int n_tokens, int window, int ratio)
{
    (void)n_heads;
    return exf_compressed_attention_workspace(n_rows, n_tokens, window, ratio);
}

/* The kernels take no queue; these let it go. */
#define WITHOUT_QUEUE(name, parameters, arguments)   \
    static void name##_queued parameters             \
    {                                                \
        (void)q;                                     \
        exf_##name##_cpu arguments;                  \
    }

/* Operands are float32 here: the queue opens in no other mode. */
WITHOUT_QUEUE(gemm_xwt,
              (exf_queue * q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw, int m, int n, int k, float alpha,
               float beta),
              (y, ldy, x.p, ldx, w.p, ldw, m, n, k, alpha, beta))
WITHOUT_QUEUE(gemm_xwt_many,
              (exf_queue * q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw, const exf_product_steps *s, int m,
               int n, int k),
              (y, ldy, x.p, ldx, w.p, ldw, s, m, n, k))
WITHOUT_QUEUE(gemm_xw,
              (exf_queue * q, float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k, float alpha,
               float beta),
              (y, ldy, x, ldx, w, ldw, m, n, k, alpha, beta))
WITHOUT_QUEUE(rmsnorm, (exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int n_rows, int n, double eps),
              (y, ldy, x, ldx, w, n_rows, n, eps))
WITHOUT_QUEUE(layernorm, (exf_queue *q, float *y, const float *w, const float *bias, int n_rows, int n, double eps),
              (y, w, bias, n_rows, n, eps))
WITHOUT_QUEUE(scale_rows, (exf_queue *q, float *y, const float *factor, int n_rows, int n), (y, factor, n_rows, n))
WITHOUT_QUEUE(add_bias, (exf_queue *q, float *y, const float *bias, int n_rows, int n), (y, bias, n_rows, n))
WITHOUT_QUEUE(clamp, (exf_queue *q, float *y, size_t n, float limit), (y, n, limit))
WITHOUT_QUEUE(copy_columns, (exf_queue * q, float *out, int ldo, const float *x, int ldx, int n_rows, int n),
              (out, ldo, x, ldx, n_rows, n))
WITHOUT_QUEUE(repeat_columns, (exf_queue *q, float *out, int ldo, int count, int step, const float *x, int ldx, int n_rows, int n),
              (out, ldo, count, step, x, ldx, n_rows, n))
WITHOUT_QUEUE(sigmoid_gate, (exf_queue * q, float *y, const float *gate, int n_rows, int d, int stride),
              (y, gate, n_rows, d, stride))
WITHOUT_QUEUE(swiglu, (exf_queue *q, float *g, const float *u, size_t n, float limit), (g, u, n, limit))
WITHOUT_QUEUE(scale, (exf_queue *q, float *y, size_t n, float factor, const float *by), (y, n, factor, by))
WITHOUT_QUEUE(soft_cap, (exf_queue *q, float *y, size_t n, float cap), (y, n, cap))
WITHOUT_QUEUE(add, (exf_queue *q, float *y, const float *x, size_t n), (y, x, n))
WITHOUT_QUEUE(gather_rows, (exf_queue * q, float *out, const float *x, const int32_t *row, int n_rows, int width),
              (out, x, row, n_rows, width))
WITHOUT_QUEUE(rope_apply, (exf_queue * q, float *x, const exf_rope_shape *s, const float *cosine, const float *sine),
              (x, s, cosine, sine))
WITHOUT_QUEUE(attention,
              (exf_queue * q, void *out, const float *query, const float *k, const float *v, const exf_attention_shape *s,
               float *workspace),
              (out, query, k, v, s, workspace))
WITHOUT_QUEUE(causal_conv_silu,
              (exf_queue * q, float *x, int ldx, const float *w, int n_tokens, int channels, int width, float *workspace),
              (x, ldx, w, n_tokens, channels, width, workspace))
WITHOUT_QUEUE(delta_gates, (exf_queue *q, float *a, float *b, const float *a_log, const float *dt_bias, int n_tokens, int n_heads),
              (a, b, a_log, dt_bias, n_tokens, n_heads))
WITHOUT_QUEUE(l2norm_heads, (exf_queue *q, float *x, int ldx, int n_tokens, int n_heads, int d, double eps, double scale),
              (x, ldx, n_tokens, n_heads, d, eps, scale))
WITHOUT_QUEUE(delta_rule,
              (exf_queue *q, float *out, const float *query, const float *k, const float *v, const float *decay, const float *beta,
               const exf_delta_shape *s, float *workspace),
              (out, query, k, v, decay, beta, s, workspace))
WITHOUT_QUEUE(compressed_attention,
              (exf_queue * q, float *out, const float *query, const exf_compressed_keys *k, const exf_compressed_attention_shape *s,
               float *workspace),
              (out, query, k, s, workspace))
WITHOUT_QUEUE(compressor,
              (exf_queue *q, float *out, const float *kv, const float *gate, const float *ape, const exf_compressor_shape *s),
              (out, kv, gate, ape, s))
WITHOUT_QUEUE(indexer,
              (exf_queue * q, unsigned char *chosen, const float *query, const float *weights, const float *keys,
               const exf_indexer_shape *s, float *workspace),
              (chosen, query, weights, keys, s, workspace))
WITHOUT_QUEUE(hyper_pre, (exf_queue *q, float *u, float *mixing, const float *x, const exf_hyper_shape *s), (u, mixing, x, s))
WITHOUT_QUEUE(hyper_post, (exf_queue * q, float *x, const float *v, const float *mixing, const exf_hyper_shape *s),
              (x, v, mixing, s))
WITHOUT_QUEUE(hyper_input, (exf_queue *q, float *u, const float *mixing, const float *x, const exf_hyper_shape *s),
              (u, mixing, x, s))
WITHOUT_QUEUE(hyper_head, (exf_queue *q, float *u, const float *x, const exf_hyper_shape *s), (u, x, s))
WITHOUT_QUEUE(router,
              (exf_queue * q, int32_t *ids, float *weights, const float *logits, const int32_t *tokens, int n_tokens,
               const exf_router_rules *r, double *scratch),
              (ids, weights, logits, tokens, n_tokens, r, scratch))

WITHOUT_QUEUE(experts,
              (exf_queue * q, exf_matrix outputs, exf_matrix x, const int32_t *ids, const exf_expert_matrices *m,
               const exf_expert_shape *s, void *workspace),
              ((float *)(uintptr_t)outputs.p, x.p, ids, m, s, workspace))
WITHOUT_QUEUE(switch_weights, (exf_queue *q, float *out, const float *x, const float *w, int n_rows, int n), (out, x, w, n_rows, n))
WITHOUT_QUEUE(moe_sum, (exf_queue *q, const exf_moe_sum_call *c), (c))
WITHOUT_QUEUE(reuse_outputs, (exf_queue *q, const exf_reuse_call *c), (c))

static size_t experts_workspace(const exf_expert_shape *s, exf_number x)
{
    (void)x;
    return exf_experts_workspace_cpu(s);
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
    .gemm_xwt = gemm_xwt_queued,
    .gemm_xwt_many = gemm_xwt_many_queued,
    .gemm_xw = gemm_xw_queued,
    .rmsnorm = rmsnorm_queued,
    .layernorm = layernorm_queued,
    .scale_rows = scale_rows_queued,
    .add_bias = add_bias_queued,
    .clamp = clamp_queued,
    .copy_columns = copy_columns_queued,
    .repeat_columns = repeat_columns_queued,
    .sigmoid_gate = sigmoid_gate_queued,
    .swiglu = swiglu_queued,
    .add = add_queued,
    .scale = scale_queued,
    .soft_cap = soft_cap_queued,
    .gather_rows = gather_rows_queued,
    .first_not_finite = first_not_finite,
    .rope = rope_apply_queued,
    .attention_workspace = attention_workspace,
    .attention = attention_queued,
    .causal_conv_workspace = exf_causal_conv_workspace,
    .causal_conv_silu = causal_conv_silu_queued,
    .delta_gates = delta_gates_queued,
    .l2norm_heads = l2norm_heads_queued,
    .delta_rule_workspace = exf_delta_rule_workspace,
    .delta_rule = delta_rule_queued,
    .compressed_attention_workspace = compressed_attention_workspace,
    .compressed_attention = compressed_attention_queued,
    .compressor = compressor_queued,
    .indexer_workspace = exf_indexer_workspace,
    .indexer = indexer_queued,
    .hyper_pre = hyper_pre_queued,
    .hyper_post = hyper_post_queued,
    .hyper_input = hyper_input_queued,
    .hyper_head = hyper_head_queued,
    .router = router_queued,
    .experts_workspace = experts_workspace,
    .experts = experts_queued,
    .switch_weights = switch_weights_queued,
    .moe_sum = moe_sum_queued,
    .reuse_outputs = reuse_outputs_queued,
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
