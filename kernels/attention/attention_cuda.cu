/* attention_cuda.cu - chooses the kernel of a causal attention and launches it; see attention.h. */
#include "kernels/attention/attention_f32.cuh"
#include "kernels/attention/attention_wide.cuh"

/* Largest head sizes of the wide kernel, which reads keys and values as rows of float16. */
enum { WIDE_D = 576, WIDE_DV = 512 };

static size_t wide_workspace(const exf_attention_shape *s)
{
    return (size_t)s->n_kv * s->n_tokens * (WIDE_D + WIDE_DV) / 2;
}

size_t exf_attention_workspace_cuda(const exf_attention_shape *s)
{
    size_t tiles = exf_attention_tiles_workspace(s), split = exf_attention_split_workspace(s);
    return !tiles ? wide_workspace(s) : tiles > split ? tiles : split;
}

static void wide(exf_queue *q, const exf_causal_view &w, float *workspace)
{
    const exf_attention_shape &s = w.s;
    size_t apart = (size_t)s.n_tokens;
    char *k = reinterpret_cast<char *>(workspace), *v = k + s.n_kv * apart * WIDE_D * 2;
    exf_round(q, k, w.k, s.ldk, s.n_tokens, s.d, WIDE_D, s.n_kv, apart);
    exf_round(q, v, w.v, s.ldv, s.n_tokens, s.dv, WIDE_DV, s.n_kv, apart);
    exf_attention_wide<exf_causal_view, WIDE_D, WIDE_DV, false>(q, w, {k, v, apart}, s.d, s.dv, s.scale, s.n_tokens, s.n_heads,
                                                                exf_aligned16(w.query, s.ldq) && s.d % 4 == 0,
                                                                exf_aligned16(w.out, s.ldo) && s.dv % 4 == 0);
}

void exf_attention_cuda(exf_queue *q, float *out, const float *query, const float *k, const float *v, const exf_attention_shape *s,
                        float *workspace)
{
    exf_causal_view w = {out, query, k, v, *s};
    if (s->n_tokens == 0 || q->err.code != EXF_OK) return;
    if (s->d > WIDE_D || s->dv > WIDE_DV)
        exf_fail(&q->err, EXF_DEVICE, "CUDA: attention: heads of %d and %d, the kernels go to %d and %d", s->d, s->dv, WIDE_D,
                 WIDE_DV);
    else if (!exf_rounds(q) && exf_hopper_code() && exf_attention_split_workspace(s))
        exf_attention_split(q, out, query, k, v, s, workspace);
    else if (!exf_rounds(q) || !exf_hopper_code())
        exf_attention_f32(q, w, s->d, s->dv, s->scale, s->n_tokens, s->n_heads, exf_aligned16(k, s->ldk) && s->d % 4 == 0,
                          exf_aligned16(v, s->ldv) && s->dv % 4 == 0);
    else if (exf_attention_tiles_workspace(s))
        exf_attention_tiles(q, out, query, k, v, s, workspace);
    else
        wide(q, w, workspace);
}
