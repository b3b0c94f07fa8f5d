/* mixer_attention.c - grouped-query attention: q/k/v/o with or without biases, RMS
 * norm of each q and k head or of the whole rows, or of each v head too, a cut of q, k and v, RoPE on the first dimensions of a
 * head, layers whose heads are wider than others' and whose values may be their keys, causal
 * softmax, over a window and with sinks where the layer has them, an optional sigmoid gate per head element, output projection. */
#include "pass/mixer.h"

#include <math.h>

/* The sizes of a layer's heads, and their rotation. */
typedef struct {
    int n_kv, d, rope;
} head_sizes;

static head_sizes sizes_of(const exf_architecture *a, int layer)
{
    const exf_attention_spec *s = &a->attention;
    if (a->traits[layer] & EXF_T_WIDE) return (head_sizes){s->wide_kv_heads, s->wide_head_dim, EXF_ROPE_WIDE};
    return (head_sizes){s->n_kv_heads, s->head_dim, EXF_ROPE_MAIN};
}

/* Where the numbers of a token's q, k and v are: each in rows of its own, or all in one. */
typedef struct {
    float *q, *k, *v;
    int ldq, ldk, ldv;
} places;

/* Computes y [T, n] = input w^T, plus the bias if the layer has one. */
static void project(const exf_mixer_call *c, float *y, exf_role weight, exf_role bias, int n)
{
    exf_mixer_product(c, y, exf_mixer_input(c, 0), weight, c->n_tokens, n, c->a->d_model);
    if (c->w[bias]) c->b->add_bias(c->q, y, c->w[bias], c->n_tokens, n);
}

/* Computes q, k and v in room for all three: as one product where their matrices are rows of one, as a device's weights lie, and
 * nothing is done to whole rows of q or k, since narrow products leave most of a device idle. */
static places project_all(const exf_mixer_call *c, float *room, int dq, int dkv)
{
    exf_matrix q = exf_mixer_weight(c, EXF_W_Q), k = exf_mixer_weight(c, EXF_W_K), v = exf_mixer_weight(c, EXF_W_V);
    size_t t = (size_t)c->n_tokens, h = (size_t)c->a->d_model;
    int all = dq + 2 * dkv;
    int biased = c->w[EXF_W_Q_BIAS] || c->w[EXF_W_K_BIAS] || c->w[EXF_W_V_BIAS];
    int plain = !biased && !c->a->attention.gated && c->a->attention.clip <= 0 &&
                !(c->a->traits[c->layer] & (EXF_T_WIDE | EXF_T_NARROW | EXF_T_V_NORM | EXF_T_QK_NORM_ROW));
    places p = {room, room + t * (size_t)dq, room + t * (size_t)(dq + dkv), dq, dkv, dkv};
    if (exf_products_round(c) && plain && q.number == k.number && q.number == v.number &&
        exf_matrix_at(q, (size_t)dq * h).p == k.p && exf_matrix_at(k, (size_t)dkv * h).p == v.p) {
        exf_mixer_product(c, room, exf_mixer_input(c, 0), EXF_W_Q, c->n_tokens, all, c->a->d_model);
        return (places){room, room + dq, room + dq + dkv, all, all, all};
    }
    project(c, p.q, EXF_W_Q, EXF_W_Q_BIAS, dq);
    project(c, p.k, EXF_W_K, EXF_W_K_BIAS, dkv);
    if (c->w[EXF_W_V] || (c->w16 && c->w16[EXF_W_V]))
        project(c, p.v, EXF_W_V, EXF_W_V_BIAS, dkv);
    else
        c->b->copy_columns(c->q, p.v, dkv, p.k, dkv, c->n_tokens, dkv);
    return p;
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
    const head_sizes of = sizes_of(a, c->layer);
    int d = of.d, whole = (a->traits[c->layer] & EXF_T_QK_NORM_ROW) != 0;
    exf_rope_shape shape = {.n_tokens = c->n_tokens, .n_heads = n_heads, .head_dim = stride, .ld = ld,
                            .d = a->rope[of.rope].dim, .step = 1, .interleaved = a->rope[of.rope].interleaved};
    if (norm && whole) c->b->rmsnorm(c->q, x, ld, x, ld, norm, c->n_tokens, n_heads * d, a->norm_eps);
    if (norm && !whole && a->attention.clip > 0)
        c->b->rmsnorm(c->q, x, stride, x, stride, norm, c->n_tokens * n_heads, d, a->norm_eps);
    else if (norm && !whole)
        shape.normed = d, shape.norm = norm, shape.eps = a->norm_eps;
    cut(c, x, ld);
    c->b->rope(c->q, x, &shape, c->rope_tables->cosine[of.rope], c->rope_tables->sine[of.rope]);
}

static void run_mixer(const exf_mixer_call *c)
{
    const exf_architecture *a = c->a;
    const exf_attention_spec *s = &a->attention;
    const head_sizes of = sizes_of(a, c->layer);
    int t = c->n_tokens, d = of.d;
    int stride = s->gated ? 2 * d : d; /* a query head and its gate after it */
    int dq = s->n_heads * stride, dkv = of.n_kv * d, dout = s->n_heads * d;
    double scale = s->score_scale > 0 ? s->score_scale : 1.0 / sqrt((double)d);
    float *room = exf_arena_take(c->arena, (size_t)t * (size_t)(dq + 2 * dkv));
    float *heads = exf_arena_take(c->arena, (size_t)t * (size_t)dout);
    exf_attention_shape shape = {.n_tokens = t, .n_heads = s->n_heads, .n_kv = of.n_kv, .d = d, .dv = d, .ldq = dout,
                                 .ldk = dkv, .ldv = dkv, .ldo = dout, .scale = (float)scale};
    float *scores = exf_arena_take(c->arena, c->b->attention_workspace(&shape));
    float *packed = s->gated ? exf_arena_take(c->arena, (size_t)t * (size_t)dout) : room;
    if (!c->arena->base) return;
    shape.window = s->window[c->layer];
    shape.sinks = c->w[EXF_W_HEAD_SINK];
    shape.rounded_out = exf_products_round(c) && !s->gated; /* a gate reads float32 */
    const places p = project_all(c, room, dq, dkv);
    if (!s->gated) shape.ldq = p.ldq;
    shape.ldk = p.ldk;
    shape.ldv = p.ldv;
    cut(c, p.v, dkv);
    norm_and_rotate(p.q, s->n_heads, p.ldq, stride, c, c->w[EXF_W_Q_NORM]);
    norm_and_rotate(p.k, of.n_kv, p.ldk, d, c, c->w[EXF_W_K_NORM]);
    if (a->traits[c->layer] & EXF_T_V_NORM) c->b->rmsnorm(c->q, p.v, d, p.v, d, NULL, t * of.n_kv, d, a->norm_eps);
    if (s->gated) c->b->copy_columns(c->q, packed, d, p.q, stride, t * s->n_heads, d);
    c->b->attention(c->q, heads, packed, p.k, p.v, &shape, scores);
    if (s->gated) c->b->sigmoid_gate(c->q, heads, p.q + d, t * s->n_heads, d, stride);
    exf_mixer_output(c, 0, exf_mixer_heads(&shape, heads), EXF_W_O, t, dout);
    if (c->w[EXF_W_O_BIAS]) c->b->add_bias(c->q, c->out, c->w[EXF_W_O_BIAS], t, a->d_model);
}

static double count_flops(const exf_architecture *a, int layer, double t)
{
    const exf_attention_spec *s = &a->attention;
    const head_sizes of = sizes_of(a, layer);
    int keys_are_values = a->traits[layer] & EXF_T_WIDE && !(a->traits[layer] & EXF_T_OWN_VALUES);
    double d = of.d, q = s->n_heads * d * (s->gated ? 2 : 1), w = s->window[layer] ? s->window[layer] : t;
    double seen = w < t ? w * t - w * (w - 1) / 2 : t * (t + 1) / 2; /* keys, of all tokens */
    return 2 * t * a->d_model * (q + s->n_heads * d + (keys_are_values ? 1 : 2) * of.n_kv * d) + 4 * s->n_heads * d * seen;
}

const exf_mixer exf_mixer_attention = {.name = "attention", .run = run_mixer, .flops = count_flops};
