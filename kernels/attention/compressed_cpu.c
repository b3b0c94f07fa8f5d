/* compressed_cpu.c - see compressed.h. */
#include "kernels/attention/compressed.h"

#include "kernels/attention/indexer_order.h"
#include "kernels/linear/linear.h"
#include "kernels/rows/simd.h"

#include <math.h>

/* ---- compressor: channels are pooled in pieces, so that their running maximum and sums stay in registers or the
 * first-level cache ----------------------------------------------------------------------------- */

enum { PIECE = 64 };

/* The `ratio` slots of a window, in rows `ld` apart. */
typedef struct {
    const float *kv, *gate, *ape;
} window_slots;

/* Pools n channels, at most PIECE, of one entry. */
static inline void pool_channels(float *out, const window_slots *runs, int n_runs, int ratio, int ld, int n)
{
    float top[PIECE];
    double sum[PIECE] = {0}, total[PIECE] = {0};
    for (int c = 0; c < n; c++) top[c] = -INFINITY;
    for (int i = 0; i < n_runs * ratio; i++) { /* slot by slot, run after run */
        const window_slots *r = &runs[i / ratio];
        const float *gate = r->gate + (size_t)(i % ratio) * (size_t)ld, *ape = r->ape + (size_t)(i % ratio) * (size_t)ld;
        for (int c = 0; c < n; c++) {
            float logit = gate[c] + ape[c];
            top[c] = logit > top[c] ? logit : top[c];
        }
    }
    for (int i = 0; i < n_runs * ratio; i++) {
        size_t at = (size_t)(i % ratio) * (size_t)ld;
        const float *kv = runs[i / ratio].kv + at, *gate = runs[i / ratio].gate + at, *ape = runs[i / ratio].ape + at;
        for (int c = 0; c < n; c++) {
            float weight = exf_expf(gate[c] + ape[c] - top[c]);
            sum[c] += (double)weight;
            total[c] += (double)weight * (double)kv[c];
        }
    }
    for (int c = 0; c < n; c++) out[c] = (float)(total[c] / sum[c]);
}

EXF_SIMD_CLONES void exf_compressor_cpu(exf_queue *q, float *out, const float *kv, const float *gate, const float *ape,
                                        const exf_compressor_shape *s)
{
    (void)q;
    int d = s->d, ld = s->overlap ? 2 * d : d, own = s->overlap ? d : 0;
    size_t window = (size_t)s->ratio * (size_t)ld;
    for (int w = 0; w < s->n_entries; w++) {
        const float *k = kv + (size_t)w * window, *g = gate + (size_t)w * window;
        for (int c = 0; c < d; c += PIECE) {
            window_slots runs[2] = {{k + own + c, g + own + c, ape + own + c}};
            int n_runs = 1, n = d - c < PIECE ? d - c : PIECE;
            if (s->overlap && w > 0) runs[n_runs++] = (window_slots){k - window + c, g - window + c, ape + c};
            pool_channels(out + (size_t)w * (size_t)d + c, runs, n_runs, s->ratio, ld, n);
        }
    }
}

/* ---- indexer: scores by GEMM, head after head; then each row selects its entries --------------- */

size_t exf_indexer_workspace_cpu(int n_rows, int n_entries)
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

/* Selects from score [n_rows, N] into chosen; order: n_entries int32 of scratch. */
static void select_rows(unsigned char *chosen, const float *score, const exf_indexer_shape *s, int32_t *order)
{
    size_t n = (size_t)((s->first + s->n_rows) / s->ratio), ld = s->ld ? (size_t)s->ld : n;
    for (int i = 0; i < s->n_rows; i++, chosen += ld) {
        exf_row_order r = {score + (size_t)i * n, (s->first + i + 1) / s->ratio, order};
        memset(chosen, 0, n);
        if (r.visible <= s->top_k) {
            memset(chosen, 1, (size_t)r.visible);
            continue;
        }
        exf_order_best(&r, s->n_entries, s->top_k);
        for (int j = 0; j < s->top_k; j++)
            if (order[j] < r.visible) chosen[order[j]] = 1;
    }
}

void exf_indexer_cpu(exf_queue *q, unsigned char *chosen, const float *query, const float *weights, const float *keys,
                     const exf_indexer_shape *s, float *workspace)
{
    int n = (s->first + s->n_rows) / s->ratio;
    size_t all = (size_t)s->n_rows * (size_t)n;
    float *score = workspace, *product = workspace + all;
    int32_t *order = (int32_t *)(product + all);
    memset(score, 0, all * sizeof *score);
    for (int h = 0; h < s->n_heads; h++) {
        exf_gemm_xwt_cpu(q, product, n, exf_f32(query + (size_t)h * (size_t)s->d), s->n_heads * s->d, exf_f32(keys), s->d,
                         s->n_rows, n, s->d, 1, 0);
        add_head(score, product, weights + h, s->n_heads, s->n_rows, n);
    }
    select_rows(chosen, score, s, order);
}

/* ---- attention: scores by GEMM against every key that some row of the block sees, the others masked out ---- */

/* The keys of a block: tokens from `from`, then entries. */
typedef struct {
    int from, n_tokens, n_entries;
} reach;

size_t exf_compressed_attention_workspace_cpu(int n_heads, int n_rows, int n_tokens, int window, int ratio)
{
    (void)n_heads; /* one at a time */
    long most = (long)n_rows + window - 1;
    size_t keys = (size_t)(most < n_tokens ? most : n_tokens) + (size_t)(ratio ? n_tokens / ratio : 0);
    return (size_t)n_rows * keys;
}

static inline void hide_keys(float *row, int begin, int end)
{
    for (int j = begin; j < end; j++) row[j] = -INFINITY;
}

/* Masks the keys that row i does not see. */
static inline void mask_row(float *row, int i, const reach *r, const exf_compressed_attention_shape *s, const unsigned char *chosen)
{
    int t = s->first + i, oldest = t - s->window + 1 - r->from;
    hide_keys(row, 0, oldest);
    hide_keys(row, t + 1 - r->from, r->n_tokens);
    if (!r->n_entries) return;
    float *entry = row + r->n_tokens;
    int visible = (t + 1) / s->ratio;
    hide_keys(entry, visible, r->n_entries);
    if (chosen)
        for (int j = 0; j < visible; j++) entry[j] = chosen[j] ? entry[j] : -INFINITY;
}

/* Computes the softmax of rows of scores, of the keys that they see and the sink. */
EXF_SIMD_CLONES static void weigh_rows(float *scores, const reach *r, const exf_compressed_attention_shape *s,
                                       const unsigned char *chosen, float sink)
{
    int n = r->n_tokens + r->n_entries;
    for (int i = 0; i < s->n_rows; i++) {
        float *row = scores + (size_t)i * (size_t)n, top = sink;
        mask_row(row, i, r, s, chosen ? chosen + (size_t)i * (size_t)r->n_entries : NULL);
        for (int j = 0; j < n; j++) top = row[j] > top ? row[j] : top;
        for (int j = 0; j < n; j++) row[j] = exf_expf(row[j] - top);
        double sum = (double)exf_expf(sink - top);
        for (int j = 0; j < n; j++) sum += (double)row[j];
        float inverse = (float)(1.0 / sum);
        for (int j = 0; j < n; j++) row[j] *= inverse;
    }
}

void exf_compressed_attention_cpu(exf_queue *q, float *out, const float *query, const exf_compressed_keys *k,
                                  const exf_compressed_attention_shape *s, float *workspace)
{
    int end = s->first + s->n_rows, oldest = s->first - s->window + 1, from = oldest > 0 ? oldest : 0;
    reach r = {from, end - from, s->ratio ? end / s->ratio : 0};
    int d = s->d, ld = s->n_heads * d, n_keys = r.n_tokens + r.n_entries;
    const float *tokens = k->tokens + (size_t)r.from * (size_t)d;
    float *at_entries = workspace + r.n_tokens;
    for (int h = 0; h < s->n_heads; h++) {
        const float *qh = query + (size_t)h * (size_t)d;
        float *oh = out + (size_t)h * (size_t)d;
        exf_gemm_xwt_cpu(q, workspace, n_keys, exf_f32(qh), ld, exf_f32(tokens), d, s->n_rows, r.n_tokens, d, s->scale, 0);
        exf_gemm_xwt_cpu(q, at_entries, n_keys, exf_f32(qh), ld, exf_f32(k->entries), d, s->n_rows, r.n_entries, d, s->scale, 0);
        weigh_rows(workspace, &r, s, k->chosen, k->sink[h]);
        exf_gemm_xw_cpu(q, oh, ld, workspace, n_keys, tokens, d, s->n_rows, d, r.n_tokens, 1, 0);
        if (r.n_entries) exf_gemm_xw_cpu(q, oh, ld, at_entries, n_keys, k->entries, d, s->n_rows, d, r.n_entries, 1, 1);
    }
}
