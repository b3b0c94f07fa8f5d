/* mixer_attention.c - see mixer_attention.h. */
#include "forward/mixer_attention.h"

#include "base/mem.h"
#include "kernels/attention.h"
#include "kernels/gemm.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"

#include <math.h>

exf_code exf_rope_tables_new(exf_rope_tables *r, const exf_attention_spec *s, int max_tokens, exf_err *err)
{
    exf_code rc;
    size_t half = (size_t)s->rope_dim / 2, n = half * (size_t)max_tokens;
    float *inv_freq = NULL;
    *r = (exf_rope_tables){NULL, NULL};
    EXF_TRY(exf_mem_new(&inv_freq, half, sizeof(float), "RoPE frequencies", err));
    EXF_TRY(exf_mem_new(&r->cosine, n, sizeof(float), "RoPE table", err));
    EXF_TRY(exf_mem_new(&r->sine, n, sizeof(float), "RoPE table", err));
    exf_rope_frequencies(inv_freq, s->rope_dim, s->rope_theta);
    exf_rope_table(r->cosine, r->sine, inv_freq, s->rope_dim, max_tokens);
out:
    exf_mem_free(inv_freq);
    return rc;
}

void exf_rope_tables_free(exf_rope_tables *r)
{
    exf_mem_free(r->cosine);
    exf_mem_free(r->sine);
    *r = (exf_rope_tables){NULL, NULL};
}

/* x [T, n_heads, d]: norm per head, then rotate. */
static void norm_and_rotate(float *x, int n_tokens, int n_heads, const exf_architecture *a, const float *norm, const exf_rope_tables *rope)
{
    const exf_attention_spec *s = &a->attention;
    int d = s->head_dim;
    if (s->qk_norm == EXF_QK_NORM_HEAD) exf_rmsnorm_cpu(x, d, x, d, norm, n_tokens * n_heads, d, a->norm_eps);
    exf_rope_apply_cpu(x, n_heads * d, n_tokens, n_heads, d, s->rope_dim, rope->cosine, rope->sine);
}

void exf_mixer_attention(float *hidden, int n_tokens, const exf_architecture *a, const exf_layer_weights *lw, const exf_rope_tables *rope,
                         const exf_mixer_space *s)
{
    const exf_attention_spec *spec = &a->attention;
    int h = a->d_model, d = spec->head_dim, dq = spec->n_heads * d, dkv = spec->n_kv_heads * d;
    exf_gemm_xwt_cpu(s->q, dq, s->normed, h, lw->w[EXF_W_Q], h, n_tokens, dq, h, 1, 0);
    exf_gemm_xwt_cpu(s->k, dkv, s->normed, h, lw->w[EXF_W_K], h, n_tokens, dkv, h, 1, 0);
    exf_gemm_xwt_cpu(s->v, dkv, s->normed, h, lw->w[EXF_W_V], h, n_tokens, dkv, h, 1, 0);
    norm_and_rotate(s->q, n_tokens, spec->n_heads, a, lw->w[EXF_W_Q_NORM], rope);
    norm_and_rotate(s->k, n_tokens, spec->n_kv_heads, a, lw->w[EXF_W_K_NORM], rope);
    exf_attention_shape shape = {n_tokens, spec->n_heads, spec->n_kv_heads, d, dq, dkv, (float)(1.0 / sqrt((double)d))};
    exf_attention_cpu(s->heads, s->q, s->k, s->v, &shape, s->scores);
    exf_gemm_xwt_cpu(hidden, h, s->heads, dq, lw->w[EXF_W_O], dq, n_tokens, h, dq, 1, 1);
}
