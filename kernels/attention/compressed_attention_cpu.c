/* compressed_attention_cpu.c - see compressed_attention.h: scores by GEMM against
 * every key that some row of the block sees, the others masked out. */
#include "kernels/attention/compressed_attention.h"

#include "kernels/linear/gemm.h"
#include "kernels/rows/simd.h"

#include <math.h>

/* The keys of a block: tokens from `from`, then entries. */
typedef struct {
    int from, n_tokens, n_entries;
} reach;

static reach reach_of(const exf_compressed_attention_shape *s)
{
    reach r;
    int oldest = s->first - s->window + 1;
    r.from = oldest > 0 ? oldest : 0;
    r.n_tokens = s->first + s->n_rows - r.from;
    r.n_entries = s->ratio ? (s->first + s->n_rows) / s->ratio : 0;
    return r;
}

size_t exf_compressed_attention_workspace(int n_rows, int n_tokens, int window, int ratio)
{
    long most = (long)n_rows + window - 1;
    size_t keys = (size_t)(most < n_tokens ? most : n_tokens) + (size_t)(ratio ? n_tokens / ratio : 0);
    return (size_t)n_rows * keys;
}

static inline void hide(float *row, int begin, int end)
{
    for (int j = begin; j < end; j++) row[j] = -INFINITY;
}

/* Masks the keys that row i does not see. */
static inline void mask_row(float *row, int i, const reach *r, const exf_compressed_attention_shape *s, const unsigned char *chosen)
{
    int t = s->first + i, oldest = t - s->window + 1 - r->from;
    hide(row, 0, oldest);
    hide(row, t + 1 - r->from, r->n_tokens);
    if (!r->n_entries) return;
    float *entry = row + r->n_tokens;
    int visible = (t + 1) / s->ratio;
    hide(entry, visible, r->n_entries);
    if (chosen)
        for (int j = 0; j < visible; j++) entry[j] = chosen[j] ? entry[j] : -INFINITY;
}

static inline void softmax_with_sink(float *row, int n, float sink)
{
    float top = sink;
    for (int j = 0; j < n; j++) top = row[j] > top ? row[j] : top;
    for (int j = 0; j < n; j++) row[j] = exf_expf(row[j] - top);
    double sum = (double)exf_expf(sink - top);
    for (int j = 0; j < n; j++) sum += (double)row[j];
    float inverse = (float)(1.0 / sum);
    for (int j = 0; j < n; j++) row[j] *= inverse;
}

EXF_SIMD_CLONES static void weigh_rows(float *scores, const reach *r, const exf_compressed_attention_shape *s,
                                       const unsigned char *chosen, float sink)
{
    int n_keys = r->n_tokens + r->n_entries;
    for (int i = 0; i < s->n_rows; i++) {
        float *row = scores + (size_t)i * (size_t)n_keys;
        mask_row(row, i, r, s, chosen ? chosen + (size_t)i * (size_t)r->n_entries : NULL);
        softmax_with_sink(row, n_keys, sink);
    }
}

void exf_compressed_attention_cpu(float *out, const float *q, const exf_compressed_keys *k, const exf_compressed_attention_shape *s,
                                  float *workspace)
{
    reach r = reach_of(s);
    int d = s->d, ld = s->n_heads * d, n_keys = r.n_tokens + r.n_entries;
    const float *tokens = k->tokens + (size_t)r.from * (size_t)d;
    float *at_entries = workspace + r.n_tokens;
    for (int h = 0; h < s->n_heads; h++) {
        const float *qh = q + (size_t)h * (size_t)d;
        float *oh = out + (size_t)h * (size_t)d;
        exf_gemm_xwt_cpu(workspace, n_keys, qh, ld, tokens, d, s->n_rows, r.n_tokens, d, s->scale, 0);
        exf_gemm_xwt_cpu(at_entries, n_keys, qh, ld, k->entries, d, s->n_rows, r.n_entries, d, s->scale, 0);
        weigh_rows(workspace, &r, s, k->chosen, k->sink[h]);
        exf_gemm_xw_cpu(oh, ld, workspace, n_keys, tokens, d, s->n_rows, d, r.n_tokens, 1, 0);
        if (r.n_entries) exf_gemm_xw_cpu(oh, ld, at_entries, n_keys, k->entries, d, s->n_rows, d, r.n_entries, 1, 1);
    }
}
