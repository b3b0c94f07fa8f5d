/* attention_cpu.c - see attention.h: blocks of query rows, scores by GEMM. */
#include "kernels/attention/attention.h"

#include "kernels/linear/gemm.h"
#include "kernels/rows/simd.h"

size_t exf_attention_workspace(int n_tokens)
{
    return (size_t)EXF_ATTENTION_ROWS * (size_t)n_tokens;
}

/* Computes the softmax of rows: row i of the block sees visible = first + i + 1 keys; the rest becomes 0. */
EXF_SIMD_CLONES static void softmax_rows(float *scores, int n_rows, int n_keys, int first)
{
    for (int i = 0; i < n_rows; i++) {
        float *row = scores + (size_t)i * (size_t)n_keys;
        int visible = first + i + 1;
        float top = row[0];
        for (int j = 1; j < visible; j++) top = row[j] > top ? row[j] : top;
        for (int j = 0; j < visible; j++) row[j] = exf_expf(row[j] - top);
        double sum = 0;
        for (int j = 0; j < visible; j++) sum += (double)row[j];
        float inverse = (float)(1.0 / sum);
        for (int j = 0; j < visible; j++) row[j] *= inverse;
        for (int j = visible; j < n_keys; j++) row[j] = 0;
    }
}

void exf_attention_cpu(float *out, const float *q, const float *k, const float *v, const exf_attention_shape *s, float *workspace)
{
    int group = s->n_heads / s->n_kv;
    for (int h = 0; h < s->n_heads; h++) {
        const float *qh = q + (size_t)h * (size_t)s->d, *kh = k + (size_t)(h / group) * (size_t)s->d;
        const float *vh = v + (size_t)(h / group) * (size_t)s->dv;
        float *oh = out + (size_t)h * (size_t)s->dv;
        for (int first = 0; first < s->n_tokens; first += EXF_ATTENTION_ROWS) {
            int n_rows = s->n_tokens - first < EXF_ATTENTION_ROWS ? s->n_tokens - first : EXF_ATTENTION_ROWS;
            int n_keys = first + n_rows;
            exf_gemm_xwt_cpu(workspace, n_keys, qh + (size_t)first * (size_t)s->ldq, s->ldq, kh, s->ldk, n_rows, n_keys, s->d,
                             s->scale, 0);
            softmax_rows(workspace, n_rows, n_keys, first);
            exf_gemm_xw_cpu(oh + (size_t)first * (size_t)s->ldo, s->ldo, workspace, n_keys, vh, s->ldv, n_rows, s->dv, n_keys, 1,
                            0);
        }
    }
}
