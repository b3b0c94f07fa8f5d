/* indexer_cuda.cu - scores on the device, the selection on the host, whose order of
 * ties is the contract (indexer.h).  Sequences long enough to need it are rare. */
#include "kernels/cuda_queue.cuh"

#include <cstdlib>

size_t exf_indexer_workspace_cuda(int n_rows, int n_entries)
{
    return 2 * (size_t)n_rows * n_entries; /* scores, one head's products */
}

static __global__ void add_head(float *score, const float *product, const float *weight, int n_heads, size_t total, int n)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < total) score[i] += weight[i / n * n_heads] * fmaxf(product[i], 0.0f);
}

static void select(exf_queue *q, unsigned char *chosen, const float *score, const exf_indexer_shape *s, size_t total)
{
    float *host = (float *)malloc(total * sizeof *host + (size_t)s->n_entries * sizeof(int32_t) + total);
    if (!host) {
        if (q->err.code == EXF_OK) exf_fail(&q->err, EXF_NOSPACE, "out of memory for the indexer's scores");
        return;
    }
    int32_t *order = (int32_t *)(host + total);
    unsigned char *bytes = (unsigned char *)(order + s->n_entries);
    if (exf_cuda_note(q, cudaMemcpyAsync(host, score, total * sizeof *host, cudaMemcpyDeviceToHost, q->stream), "indexer") &&
        exf_cuda_note(q, cudaStreamSynchronize(q->stream), "indexer")) {
        exf_indexer_select_cpu(bytes, host, s, order);
        exf_cuda_note(q, cudaMemcpyAsync(chosen, bytes, total, cudaMemcpyHostToDevice, q->stream), "indexer");
        exf_cuda_note(q, cudaStreamSynchronize(q->stream), "indexer");
    }
    free(host);
}

void exf_indexer_cuda(exf_queue *q, unsigned char *chosen, const float *query, const float *weights, const float *keys,
                      const exf_indexer_shape *s, float *workspace)
{
    int n = (s->first + s->n_rows) / s->ratio;
    size_t total = (size_t)s->n_rows * n;
    float *score = workspace, *product = workspace + total;
    if (q->err.code != EXF_OK) return;
    exf_cuda_note(q, cudaMemsetAsync(score, 0, total * sizeof *score, q->stream), "indexer");
    for (int h = 0; h < s->n_heads; h++) {
        exf_gemm_xwt_cuda(q, product, n, query + (size_t)h * s->d, s->n_heads * s->d, keys, s->d, s->n_rows, n, s->d, 1, 0);
        EXF_LAUNCH(q, "indexer", add_head, exf_blocks(total, 256), 256, 0, score, product, weights + h, s->n_heads, total, n);
    }
    if (q->err.code == EXF_OK) select(q, chosen, score, s, total);
}
