/* compressed_attention_cuda.cu - all heads of a block of queries at once: scores by
 * batched products against every key that some row sees, the others masked out;
 * see compressed_attention.h. */
#include "kernels/cuda_queue.cuh"
#include "kernels/cuda_reduce.cuh"

/* The keys of a block: tokens from `from`, then entries. */
typedef struct {
    int from, n_tokens, n_entries;
} reach;

static reach reach_of(const exf_compressed_attention_shape *s)
{
    int from = s->first - s->window + 1 > 0 ? s->first - s->window + 1 : 0;
    return {from, s->first + s->n_rows - from, s->ratio ? (s->first + s->n_rows) / s->ratio : 0};
}

/* Scores of all heads. */
size_t exf_compressed_attention_workspace_cuda(int n_heads, int n_rows, int n_tokens, int window, int ratio)
{
    return (size_t)n_heads * exf_compressed_attention_workspace(n_rows, n_tokens, window, ratio);
}

static __device__ bool sees(int j, int t, const reach &r, const exf_compressed_attention_shape &s, const unsigned char *chosen)
{
    if (j < r.n_tokens) return r.from + j <= t && r.from + j > t - s.window;
    int w = j - r.n_tokens;
    return w < (t + 1) / s.ratio && (!chosen || chosen[w]);
}

/* Grid: rows, heads. */
static __global__ void softmax_with_sink(float *scores, reach r, exf_compressed_attention_shape s, const unsigned char *chosen, const float *sink)
{
    int n_keys = r.n_tokens + r.n_entries, t = s.first + blockIdx.x;
    float *row = scores + ((size_t)blockIdx.y * s.n_rows + blockIdx.x) * n_keys, rest = sink[blockIdx.y], top = rest;
    if (chosen) chosen += (size_t)blockIdx.x * r.n_entries;
    for (int j = threadIdx.x; j < n_keys; j += blockDim.x) {
        if (!sees(j, t, r, s, chosen)) row[j] = -INFINITY;
        top = fmaxf(top, row[j]);
    }
    top = exf_block_max(top);
    double sum = 0;
    for (int j = threadIdx.x; j < n_keys; j += blockDim.x) {
        row[j] = expf(row[j] - top);
        sum += (double)row[j];
    }
    float inverse = (float)(1.0 / (exf_block_sum(sum) + (double)expf(rest - top)));
    for (int j = threadIdx.x; j < n_keys; j += blockDim.x) row[j] *= inverse;
}

/* scores[h, :, at..) = scale q_h keys^T for all heads. */
static void score(exf_queue *q, float *scores, int n_keys, const float *query, const float *keys, int n, const exf_compressed_attention_shape *s)
{
    const float nought = 0;
    if (n && q->err.code == EXF_OK)
        exf_cublas_note(q, q->cublas->sgemm_batched(q->blas, CUBLAS_OP_T, CUBLAS_OP_N, n, s->n_rows, s->d, &s->scale, keys, s->d, 0, query,
                                                    s->n_heads * s->d, s->d, &nought, scores, n_keys, (long long)s->n_rows * n_keys, s->n_heads),
                        "compressed scores");
}

/* out_h = (add ? out_h : 0) + scores[h, :, at..) keys. */
static void weigh(exf_queue *q, float *out, const float *scores, int n_keys, const float *keys, int n, float add,
                  const exf_compressed_attention_shape *s)
{
    const float one = 1;
    if (n && q->err.code == EXF_OK)
        exf_cublas_note(q, q->cublas->sgemm_batched(q->blas, CUBLAS_OP_N, CUBLAS_OP_N, s->d, s->n_rows, n, &one, keys, s->d, 0, scores, n_keys,
                                                    (long long)s->n_rows * n_keys, &add, out, s->n_heads * s->d, s->d, s->n_heads),
                        "compressed values");
}

void exf_compressed_attention_cuda(exf_queue *q, float *out, const float *query, const exf_compressed_keys *k,
                                   const exf_compressed_attention_shape *s, float *workspace)
{
    reach r = reach_of(s);
    int n_keys = r.n_tokens + r.n_entries;
    const float *tokens = k->tokens + (size_t)r.from * s->d;
    if (s->n_rows == 0) return;
    score(q, workspace, n_keys, query, tokens, r.n_tokens, s);
    score(q, workspace + r.n_tokens, n_keys, query, k->entries, r.n_entries, s);
    EXF_LAUNCH(q, "compressed softmax", softmax_with_sink, dim3((unsigned)s->n_rows, (unsigned)s->n_heads), 128, 0, workspace, r, *s, k->chosen,
               k->sink);
    weigh(q, out, workspace, n_keys, tokens, r.n_tokens, 0, s);
    weigh(q, out, workspace + r.n_tokens, n_keys, k->entries, r.n_entries, 1, s);
}
