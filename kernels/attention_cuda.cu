/* attention_cuda.cu - blocks of query rows; scores and values as batched products,
 * one batch per key-value head's group of query heads; see attention.h. */
#include "kernels/cuda_queue.cuh"
#include "kernels/cuda_reduce.cuh"

/* Scores of one block of rows for all heads: [n_heads, EXF_ATTENTION_ROWS, T]. */
size_t exf_attention_workspace_cuda(const exf_attention_shape *s)
{
    return (size_t)s->n_heads * EXF_ATTENTION_ROWS * s->n_tokens;
}

/* Row i of a head sees keys 0 .. first + i; the rest becomes 0.  Grid: rows, heads. */
static __global__ void softmax_rows(float *scores, int n_rows, int n_keys, int first)
{
    float *row = scores + ((size_t)blockIdx.y * n_rows + blockIdx.x) * n_keys;
    int visible = first + blockIdx.x + 1;
    float top = -INFINITY;
    for (int j = threadIdx.x; j < visible; j += blockDim.x) top = fmaxf(top, row[j]);
    top = exf_block_max(top);
    double sum = 0;
    for (int j = threadIdx.x; j < visible; j += blockDim.x) {
        row[j] = expf(row[j] - top);
        sum += (double)row[j];
    }
    float inverse = (float)(1.0 / exf_block_sum(sum));
    for (int j = threadIdx.x; j < n_keys; j += blockDim.x) row[j] = j < visible ? row[j] * inverse : 0.0f;
}

static void block_of_rows(exf_queue *q, float *out, const float *query, const float *k, const float *v, const exf_attention_shape *s,
                          float *scores, int first, int n_rows)
{
    const float one = 1, nought = 0;
    int group = s->n_heads / s->n_kv, n_keys = first + n_rows;
    long long each = (long long)n_rows * n_keys;
    for (int kv = 0; kv < s->n_kv; kv++)
        exf_cublas_note(q, q->cublas->sgemm_batched(q->blas, CUBLAS_OP_T, CUBLAS_OP_N, n_keys, n_rows, s->d, &s->scale, k + (size_t)kv * s->d,
                                                     s->ldk, 0, query + (size_t)first * s->ldq + (size_t)kv * group * s->d, s->ldq, s->d,
                                                     &nought, scores + kv * group * each, n_keys, each, group), "scores");
    EXF_LAUNCH(q, "softmax", softmax_rows, dim3((unsigned)n_rows, (unsigned)s->n_heads), 128, 0, scores, n_rows, n_keys, first);
    for (int kv = 0; kv < s->n_kv; kv++)
        exf_cublas_note(q, q->cublas->sgemm_batched(q->blas, CUBLAS_OP_N, CUBLAS_OP_N, s->dv, n_rows, n_keys, &one, v + (size_t)kv * s->dv,
                                                     s->ldv, 0, scores + kv * group * each, n_keys, each, &nought,
                                                     out + (size_t)first * s->ldo + (size_t)kv * group * s->dv, s->ldo, s->dv, group), "values");
}

void exf_attention_cuda(exf_queue *q, float *out, const float *query, const float *k, const float *v, const exf_attention_shape *s,
                        float *workspace)
{
    for (int first = 0; q->err.code == EXF_OK && first < s->n_tokens; first += EXF_ATTENTION_ROWS)
        block_of_rows(q, out, query, k, v, s, workspace, first,
                      s->n_tokens - first < EXF_ATTENTION_ROWS ? s->n_tokens - first : EXF_ATTENTION_ROWS);
}
