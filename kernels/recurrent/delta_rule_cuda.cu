/* delta_rule_cuda.cu - gates and norms; the rule itself in chunks (delta_chunks.cu,
 * delta_rule_internal.cuh) or, for keys that do not fit there and for other GPUs, token by token;
 * see delta_rule.h.
 *
 * Gates: a thread an element, a and b read and written, 16 bytes.  Norms: a warp a head, 8 bytes a float: 32 heads of 128 of
 * q and k, T 4096, are 134 MB, 0.032 ms at 4.2 TB/s; they reach 75 to 94 % of a copy.  Token by token: a block a value head,
 * a thread a column of its state, which is read and written at every token. */
#include "kernels/attention/attention_wide.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/recurrent/delta_rule_internal.cuh"

static __global__ void delta_gates(float *a, float *b, const float *a_log, const float *dt_bias, size_t total, int n_heads)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= total) return;
    int h = (int)(i % n_heads);
    double x = (double)a[i] + (double)dt_bias[h], softplus = x > 20 ? x : log1p(exp(x));
    a[i] = (float)exp(-exp((double)a_log[h]) * softplus);
    b[i] = (float)(1 / (1 + exp(-(double)b[i])));
}

void exf_delta_gates_cuda(exf_queue *q, float *a, float *b, const float *a_log, const float *dt_bias, int n_tokens, int n_heads)
{
    size_t total = (size_t)n_tokens * n_heads;
    if (total) EXF_LAUNCH(q, "delta_gates", delta_gates, exf_blocks(total, 256), 256, 0, a, b, a_log, dt_bias, total, n_heads);
}

/* One warp per head. */
static __global__ void l2norm_heads(float *x, int ldx, size_t total, int n_heads, int d, double eps, double scale)
{
    size_t i = blockIdx.x * (size_t)(blockDim.x / 32) + threadIdx.x / 32;
    if (i >= total) return;
    float *head = x + i / n_heads * ldx + i % n_heads * d;
    double sum = 0;
    for (int c = threadIdx.x % 32; c < d; c += 32) sum += (double)head[c] * (double)head[c];
    float factor = (float)(scale / sqrt(exf_warp_sum(sum) + eps));
    for (int c = threadIdx.x % 32; c < d; c += 32) head[c] *= factor;
}

/* The same for heads of 4 n floats, n at most 32, on 16-byte boundaries. */
static __global__ void l2norm_quads(float *x, int ldx, size_t total, int n_heads, int n, double eps, double scale)
{
    size_t i = blockIdx.x * (size_t)(blockDim.x / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (i >= total) return;
    float4 *at = reinterpret_cast<float4 *>(x + i / n_heads * ldx + i % n_heads * n * 4) + lane;
    float4 y = lane < n ? *at : make_float4(0, 0, 0, 0);
    float factor = (float)(scale / sqrt(exf_warp_sum(exf_square_sum(y)) + eps));
    if (lane < n) *at = make_float4(y.x * factor, y.y * factor, y.z * factor, y.w * factor);
}

void exf_l2norm_heads_cuda(exf_queue *q, float *x, int ldx, int n_tokens, int n_heads, int d, double eps, double scale)
{
    size_t total = (size_t)n_tokens * n_heads;
    unsigned blocks = exf_blocks(total, 8);
    if (total == 0) return;
    if (d % 4 == 0 && d <= 128 && exf_aligned16(x, ldx))
        EXF_LAUNCH(q, "l2norm_heads", l2norm_quads, blocks, 256, 0, x, ldx, total, n_heads, d / 4, eps, scale);
    else
        EXF_LAUNCH(q, "l2norm_heads", l2norm_heads, blocks, 256, 0, x, ldx, total, n_heads, d, eps, scale);
}

/* Returns true if the rule runs in chunks, with float16 operands or in float32. */
static bool runs_in_chunks(const exf_delta_shape *s, bool rounds)
{
    return s->key_dim <= EXF_DELTA_MOST_KEY && (rounds ? exf_uses_tensor_cores(0) : exf_delta_chunks_fit(s));
}

/* For either arithmetic, in chunks or token by token: the states of all heads, [n_value_heads, key_dim, value_dim]. */
size_t exf_delta_rule_workspace_cuda(const exf_delta_shape *s)
{
    size_t states = (size_t)s->n_value_heads * s->key_dim * s->value_dim;
    size_t exact = runs_in_chunks(s, false) ? exf_delta_chunks_workspace(s) : states,
           halves = runs_in_chunks(s, true) ? exf_delta_halves_workspace(s) : states;
    return exact > halves ? exact : halves;
}

/* Grid: value heads.  A thread per column of a state, token by token. */
static __global__ void delta_rule(float *out, const float *query, const float *k, const float *v, const float *decay,
                                  const float *beta, exf_delta_shape s, float *states)
{
    extern __shared__ float shared[]; /* k, then q, of the token under way */
    int h = blockIdx.x, key_head = h / (s.n_value_heads / s.n_key_heads), n = s.key_dim;
    float *state = states + (size_t)h * n * s.value_dim, *ks = shared, *qs = shared + n;
    for (int j = threadIdx.x; j < s.value_dim; j += blockDim.x)
        for (int i = 0; i < n; i++) state[(size_t)i * s.value_dim + j] = 0;
    for (int t = 0; t < s.n_tokens; t++) {
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            ks[i] = k[(size_t)t * s.ldk + (size_t)key_head * n + i];
            qs[i] = query[(size_t)t * s.ldq + (size_t)key_head * n + i];
        }
        __syncthreads();
        float g = decay[(size_t)t * s.n_value_heads + h], b = beta[(size_t)t * s.n_value_heads + h];
        for (int j = threadIdx.x; j < s.value_dim; j += blockDim.x) {
            float known = 0, o = 0;
            for (int i = 0; i < n; i++) known += state[(size_t)i * s.value_dim + j] * ks[i];
            float d = b * (v[(size_t)t * s.ldv + (size_t)h * s.value_dim + j] - g * known);
            for (int i = 0; i < n; i++) {
                float *cell = &state[(size_t)i * s.value_dim + j], next = g * *cell + ks[i] * d;
                *cell = next;
                o += next * qs[i];
            }
            out[(size_t)t * s.ldo + (size_t)h * s.value_dim + j] = o;
        }
    }
}

void exf_delta_rule_cuda(exf_queue *q, float *out, const float *query, const float *k, const float *v, const float *decay,
                         const float *beta, const exf_delta_shape *s, float *workspace)
{
    int threads = s->value_dim < 32 ? 32 : s->value_dim > 1024 ? 1024 : (s->value_dim + 31) / 32 * 32;
    if (s->n_tokens == 0) return;
    if (exf_rounds(q) && runs_in_chunks(s, true)) {
        exf_delta_halves p = exf_delta_halves_at(workspace, out, decay, beta, s);
        size_t t = (size_t)s->n_tokens;
        exf_round(q, p.rows.q, query, s->ldq, s->n_tokens, s->key_dim, p.dk, s->n_key_heads, t);
        exf_round(q, p.rows.k, k, s->ldk, s->n_tokens, s->key_dim, p.dk, s->n_key_heads, t);
        exf_round(q, p.rows.v, v, s->ldv, s->n_tokens, s->value_dim, p.width, s->n_value_heads, t);
        exf_delta_halves_run(q, p);
    } else if (!exf_rounds(q) && runs_in_chunks(s, false)) {
        exf_delta_chunks(q, out, query, k, v, decay, beta, s, workspace);
    } else {
        EXF_LAUNCH(q, "delta_rule", delta_rule, s->n_value_heads, threads, 2 * (size_t)s->key_dim * sizeof(float), out, query, k, v,
                   decay, beta, *s, workspace);
    }
}

static int qkv_channels(const exf_delta_shape *s)
{
    return 2 * s->n_key_heads * s->key_dim + s->n_value_heads * s->value_dim;
}

size_t exf_conv_delta_rule_workspace_cuda(const exf_delta_shape *s, int width)
{
    size_t conv = exf_causal_conv_workspace_cuda(qkv_channels(s), width), rule = exf_delta_rule_workspace_cuda(s);
    return conv > rule ? conv : rule;
}

void exf_conv_delta_rule_cuda(exf_queue *q, float *out, float *qkv, const float *taps, int width, const float *decay,
                              const float *beta, const exf_delta_shape *s, double eps, float *workspace)
{
    float *k = qkv + s->n_key_heads * s->key_dim, *v = k + s->n_key_heads * s->key_dim;
    double scale = 1 / sqrt((double)s->key_dim);
    if (s->n_tokens == 0) return;
    if (exf_rounds(q) && runs_in_chunks(s, true) && exf_conv_rows_fit(qkv, s, width)) {
        exf_delta_halves p = exf_delta_halves_at(workspace, out, decay, beta, s);
        exf_conv_rows(q, p.rows, qkv, taps, s, eps, scale);
        exf_delta_halves_run(q, p);
        return;
    }
    exf_causal_conv_silu_cuda(q, qkv, s->ldq, taps, s->n_tokens, qkv_channels(s), width, workspace);
    exf_l2norm_heads_cuda(q, qkv, s->ldq, s->n_tokens, s->n_key_heads, s->key_dim, eps, scale);
    exf_l2norm_heads_cuda(q, k, s->ldk, s->n_tokens, s->n_key_heads, s->key_dim, eps, 1);
    exf_delta_rule_cuda(q, out, qkv, k, v, decay, beta, s, workspace);
}
