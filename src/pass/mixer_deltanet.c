/* mixer_deltanet.c - gated delta rule: one projection to q, k and v, a short
 * causal convolution with SiLU over all of them, l2-normalised q and k, the
 * recurrence, an RMS norm of each head gated by silu(z), output projection. */
#include "pass/mixer.h"

#include <math.h>

/* Added inside the root of the l2 norm; the reference has it as a constant, too. */
static const double l2_eps = 1e-6;

/* Computes out [T, value heads x value_dim] from qkv [T, q | k | v], which it overwrites. */
static void run_recurrence(const exf_mixer_call *c, float *out, float *qkv, const float *decay, const float *beta,
                           const exf_delta_shape *s, float *workspace)
{
    int dk = s->n_key_heads * s->key_dim, width = c->a->deltanet.conv_width;
    float *k = qkv + dk;
    const float *taps = c->w[EXF_W_DELTA_CONV];
    if (c->b->gpu && c->b->gpu->conv_delta_rule) {
        c->b->gpu->conv_delta_rule(c->q, out, qkv, taps, width, decay, beta, s, l2_eps, workspace);
        return;
    }
    c->b->causal_conv_silu(c->q, qkv, s->ldq, taps, s->n_tokens, s->ldq, width, workspace);
    c->b->l2norm_heads(c->q, qkv, s->ldq, s->n_tokens, s->n_key_heads, s->key_dim, l2_eps, 1 / sqrt((double)s->key_dim));
    c->b->l2norm_heads(c->q, k, s->ldk, s->n_tokens, s->n_key_heads, s->key_dim, l2_eps, 1);
    c->b->delta_rule(c->q, out, qkv, k, k + dk, decay, beta, s, workspace);
}

/* Computes the last product's operand, silu(z) times the normed heads, in z; rounds it into rounded_heads if products round. */
static exf_matrix gate_heads(const exf_mixer_call *c, float *heads, float *z, float *rounded_heads, const exf_delta_shape *s)
{
    int n_rows = s->n_tokens * s->n_value_heads, d = s->value_dim;
    double eps = c->a->norm_eps;
    if (exf_products_round(c)) {
        uint16_t *rounded = (uint16_t *)(void *)rounded_heads;
        c->b->gpu->gate_heads_rounded(c->q, rounded, heads, z, c->w[EXF_W_DELTA_NORM], n_rows, d, eps);
        return exf_bf16(rounded);
    }
    c->b->rmsnorm(c->q, heads, d, heads, d, c->w[EXF_W_DELTA_NORM], n_rows, d, eps);
    c->b->swiglu(c->q, z, heads, (size_t)n_rows * (size_t)d, 0);
    return exf_f32(z);
}

static void run_mixer(const exf_mixer_call *c)
{
    const exf_architecture *a = c->a;
    const exf_deltanet_spec *d = &a->deltanet;
    exf_matrix x = exf_mixer_input(c, 0);
    int t = c->n_tokens, h = a->d_model, n_heads = d->n_value_heads;
    int dv = n_heads * d->value_dim, dqkv = 2 * d->n_key_heads * d->key_dim + dv;
    exf_delta_shape s = {.n_tokens = t, .n_key_heads = d->n_key_heads, .n_value_heads = n_heads, .key_dim = d->key_dim,
                         .value_dim = d->value_dim, .ldq = dqkv, .ldk = dqkv, .ldv = dqkv, .ldo = dv};
    size_t rows = (size_t)t;
    float *qkv = exf_arena_take(c->arena, rows * (size_t)dqkv), *z = exf_arena_take(c->arena, rows * (size_t)dv);
    float *heads = exf_arena_take(c->arena, rows * (size_t)dv);
    float *decay = exf_arena_take(c->arena, rows * (size_t)n_heads), *beta = exf_arena_take(c->arena, rows * (size_t)n_heads);
    size_t conv = c->b->causal_conv_workspace(s.ldq, d->conv_width), rule = c->b->delta_rule_workspace(&s);
    size_t floats = c->b->gpu && c->b->gpu->conv_delta_rule ? c->b->gpu->conv_delta_rule_workspace(&s, d->conv_width)
                    : conv > rule                            ? conv
                                                             : rule;
    float *space = exf_arena_take(c->arena, floats);
    if (!c->arena->base) return;
    exf_mixer_product(c, qkv, x, EXF_W_DELTA_QKV, t, dqkv, h);
    exf_mixer_product(c, z, x, EXF_W_DELTA_Z, t, dv, h);
    exf_mixer_product(c, decay, x, EXF_W_DELTA_A, t, n_heads, h);
    exf_mixer_product(c, beta, x, EXF_W_DELTA_B, t, n_heads, h);
    c->b->delta_gates(c->q, decay, beta, c->w[EXF_W_DELTA_A_LOG], c->w[EXF_W_DELTA_DT_BIAS], t, n_heads);
    run_recurrence(c, heads, qkv, decay, beta, &s, space);
    exf_matrix gated = gate_heads(c, heads, z, qkv, &s); /* qkv is free: q, k and v are no longer needed */
    exf_mixer_output(c, 0, gated, EXF_W_DELTA_OUT, t, dv);
}

static double count_flops(const exf_architecture *a, int layer, double t)
{
    const exf_deltanet_spec *s = &a->deltanet;
    double dv = (double)s->n_value_heads * s->value_dim, dqkv = 2.0 * s->n_key_heads * s->key_dim + dv;
    (void)layer;
    return 2 * t * a->d_model * (dqkv + 2 * dv + 2 * s->n_value_heads) + 2 * t * dqkv * s->conv_width + 7 * t * dv * s->key_dim;
}

const exf_mixer exf_mixer_deltanet = {.name = "deltanet", .run = run_mixer, .flops = count_flops};
