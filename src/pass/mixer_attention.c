/* mixer_attention.c - grouped-query attention: q/k/v/o with or without biases, RMS
 * norm of each q and k head or of the whole rows, a cut of q, k and v, RoPE on the first dimensions of a head, causal
 * softmax, over a window and with sinks where the layer has them, an optional sigmoid gate per head element, output projection. */
#include "pass/mix.h"

#include <math.h>

/* Computes y [T, n] = input w^T, plus the bias if the layer has one. */
static void project(const exf_mixer_call *c, float *y, exf_role weight, exf_role bias, int n)
{
    exf_mixer_product(c, y, exf_mixer_input(c, 0), weight, c->n_tokens, n, c->a->d_model);
    if (c->w[bias]) c->b->add_bias(c->q, y, c->w[bias], c->n_tokens, n);
}

/* Cuts x, n floats a token, where the model says so. */
static void cut(const exf_mixer_call *c, float *x, int n)
{
    double clip = c->a->attention.clip;
    if (clip > 0) c->b->clamp(c->q, x, (size_t)c->n_tokens * (size_t)n, (float)clip);
}

/* Norms, cuts and rotates the heads of x, each of width d; a token has ld floats.  A norm over the whole row has no gates in it.
 * A norm of heads and the rotation are one pass, unless the cut comes between them. */
static void norm_and_rotate(float *x, int n_heads, int ld, int stride, const exf_mixer_call *c, const float *norm)
{
    const exf_architecture *a = c->a;
    int d = a->attention.head_dim, whole = (a->traits[c->layer] & EXF_T_QK_NORM_ROW) != 0;
    exf_rope_shape shape = {.n_tokens = c->n_tokens, .n_heads = n_heads, .head_dim = stride, .ld = ld,
                            .d = a->rope[EXF_ROPE_MAIN].dim, .step = 1, .interleaved = a->rope[EXF_ROPE_MAIN].interleaved};
    if (norm && whole) c->b->rmsnorm(c->q, x, ld, x, ld, norm, c->n_tokens, n_heads * d, a->norm_eps);
    if (norm && !whole && a->attention.clip > 0)
        c->b->rmsnorm(c->q, x, stride, x, stride, norm, c->n_tokens * n_heads, d, a->norm_eps);
    else if (norm && !whole)
        shape.normed = d, shape.norm = norm, shape.eps = a->norm_eps;
    cut(c, x, ld);
    c->b->rope(c->q, x, &shape, c->rope_tables->cosine[EXF_ROPE_MAIN], c->rope_tables->sine[EXF_ROPE_MAIN]);
}

static void run_mixer(const exf_mixer_call *c)
{
    const exf_architecture *a = c->a;
    const exf_attention_spec *s = &a->attention;
    int t = c->n_tokens, d = s->head_dim;
    int stride = s->gated ? 2 * d : d; /* a query head and its gate after it */
    int dq = s->n_heads * stride, dkv = s->n_kv_heads * d, dout = s->n_heads * d;
    float *q = exf_arena_take(c->arena, (size_t)t * (size_t)dq), *k = exf_arena_take(c->arena, (size_t)t * (size_t)dkv);
    float *v = exf_arena_take(c->arena, (size_t)t * (size_t)dkv), *heads = exf_arena_take(c->arena, (size_t)t * (size_t)dout);
    exf_attention_shape shape = {.n_tokens = t, .n_heads = s->n_heads, .n_kv = s->n_kv_heads, .d = d, .dv = d, .ldq = dout,
                                 .ldk = dkv, .ldv = dkv, .ldo = dout, .scale = (float)(1.0 / sqrt((double)d))};
    float *scores = exf_arena_take(c->arena, c->b->attention_workspace(&shape));
    float *packed = s->gated ? exf_arena_take(c->arena, (size_t)t * (size_t)dout) : q;
    if (!c->arena->base) return;
    shape.window = s->window[c->layer];
    shape.sinks = c->w[EXF_W_HEAD_SINK];
    shape.rounded_out = exf_products_round(c) && !s->gated; /* a gate reads float32 */
    project(c, q, EXF_W_Q, EXF_W_Q_BIAS, dq);
    project(c, k, EXF_W_K, EXF_W_K_BIAS, dkv);
    project(c, v, EXF_W_V, EXF_W_V_BIAS, dkv);
    cut(c, v, dkv);
    norm_and_rotate(q, s->n_heads, dq, stride, c, c->w[EXF_W_Q_NORM]);
    norm_and_rotate(k, s->n_kv_heads, dkv, d, c, c->w[EXF_W_K_NORM]);
    if (s->gated) c->b->copy_columns(c->q, packed, d, q, stride, t * s->n_heads, d);
    c->b->attention(c->q, heads, packed, k, v, &shape, scores);
    if (s->gated) c->b->sigmoid_gate(c->q, heads, q + d, t * s->n_heads, d, stride);
    exf_mixer_output(c, 0, exf_mixer_heads(&shape, heads), EXF_W_O, t, dout);
    if (c->w[EXF_W_O_BIAS]) c->b->add_bias(c->q, c->out, c->w[EXF_W_O_BIAS], t, a->d_model);
}

static double count_flops(const exf_architecture *a, int layer, double t)
{
    const exf_attention_spec *s = &a->attention;
    double d = s->head_dim, q = s->n_heads * d * (s->gated ? 2 : 1), w = s->window[layer] ? s->window[layer] : t;
    double seen = w < t ? w * t - w * (w - 1) / 2 : t * (t + 1) / 2; /* keys, of all tokens */
    return 2 * t * a->d_model * (q + s->n_heads * d + 2 * s->n_kv_heads * d) + 4 * s->n_heads * d * seen;
}

const exf_mixer exf_mixer_attention = {.name = "attention", .run = run_mixer, .flops = count_flops};
