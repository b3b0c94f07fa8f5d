/* indexer_cpu.c - see indexer.h.  Scores are computed by GEMM, head after head; then each row
 * selects its entries. */
#include "kernels/attention/indexer.h"

#include "kernels/linear/gemm.h"
#include "kernels/attention/indexer_order.h"
#include "kernels/rows/simd.h"

size_t exf_indexer_workspace(int n_rows, int n_entries)
{
    return (2 * (size_t)n_rows + 1) * (size_t)n_entries; /* scores, one head's products, an order */
}

/* Adds weight * relu(product) to score, row by row; weights are n_heads apart. */
EXF_SIMD_CLONES static void add_head(float *score, const float *product, const float *weight, int n_heads, int n_rows, int n)
{
    for (int i = 0; i < n_rows; i++) {
        const float *p = product + (size_t)i * (size_t)n;
        float *s = score + (size_t)i * (size_t)n, w = weight[(size_t)i * (size_t)n_heads];
        for (int j = 0; j < n; j++) s[j] += w * (p[j] > 0 ? p[j] : 0);
    }
}

static void choose(unsigned char *chosen, const exf_row_order *r, int n_entries, int top_k)
{
    if (r->visible <= top_k) {
        memset(chosen, 1, (size_t)r->visible);
        return;
    }
    exf_order_best(r, n_entries, top_k);
    for (int j = 0; j < top_k; j++)
        if (r->order[j] < r->visible) chosen[r->order[j]] = 1;
}

void exf_indexer_cpu(unsigned char *chosen, const float *q, const float *weights, const float *keys, const exf_indexer_shape *s,
                     float *workspace)
{
    int n = (s->first + s->n_rows) / s->ratio;
    size_t all = (size_t)s->n_rows * (size_t)n;
    float *score = workspace, *product = workspace + all;
    int32_t *order = (int32_t *)(product + all);
    memset(score, 0, all * sizeof *score);
    for (int h = 0; h < s->n_heads; h++) {
        exf_gemm_xwt_cpu(product, n, q + (size_t)h * (size_t)s->d, s->n_heads * s->d, keys, s->d, s->n_rows, n, s->d, 1, 0);
        add_head(score, product, weights + h, s->n_heads, s->n_rows, n);
    }
    exf_indexer_select_cpu(chosen, score, s, order);
}

void exf_indexer_select_cpu(unsigned char *chosen, const float *score, const exf_indexer_shape *s, int32_t *order)
{
    size_t n = (size_t)((s->first + s->n_rows) / s->ratio);
    memset(chosen, 0, (size_t)s->n_rows * n);
    for (int i = 0; i < s->n_rows; i++) {
        exf_row_order r = {score + (size_t)i * n, (s->first + i + 1) / s->ratio, order};
        choose(chosen + (size_t)i * n, &r, s->n_entries, s->top_k);
    }
}
