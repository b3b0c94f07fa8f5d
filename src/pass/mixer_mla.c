/* mixer_mla.c - multi-head latent attention: keys and values of all heads are expanded from one
 * normed latent per token; beside it is one rotated key that all heads share; q is projected
 * directly or through a normed low rank.
 *
 * Keys and values are expanded, not absorbed into q and o: the reference does the same, and
 * long sequences cost fewer operations.  Heads are expanded a group at a time, since the
 * expansion of all is as large as q and the output together: one head on the CPU, as many as
 * keep a GPU busy on a GPU. */
#include "pass/mixer.h"

typedef struct {
    float *q_low;  /* [T, q_rank] */
    float *q;      /* [T, heads, nope + rope] */
    float *latent; /* [T, kv_rank + rope]: the latent, the shared key */
    float *k, *v;  /* [T, group, nope + rope], [T, group, v_dim] */
    float *heads;  /* [T, heads, v_dim], bfloat16 if products round */
    float *scores;
} mla_space;

enum { DEVICE_GROUP = 16 };

/* Returns how many heads are expanded at a time. */
static int group_of(const exf_mixer_call *c)
{
    int most = !c->b->gpu ? 1 : DEVICE_GROUP, n = c->a->mla.n_heads;
    return n < most ? n : most;
}

/* Returns the shape of n heads' attention: q has the rows of all heads, k and v those of the group. */
static exf_attention_shape shape_of(const exf_mixer_call *c, int n)
{
    const exf_mla_spec *s = &c->a->mla;
    int dk = s->nope_dim + s->rope_dim, dv = s->v_dim, group = group_of(c);
    return (exf_attention_shape){.n_tokens = c->n_tokens, .n_heads = n, .n_kv = n, .d = dk, .dv = dv, .ldq = s->n_heads * dk,
                                 .ldk = group * dk, .ldv = group * dv, .ldo = s->n_heads * dv, .scale = (float)s->score_scale,
                                 .rounded_out = exf_products_round(c)};
}

static void carve_arrays(mla_space *m, const exf_mixer_call *c)
{
    const exf_mla_spec *s = &c->a->mla;
    exf_arena *arena = c->arena;
    exf_attention_shape shape = shape_of(c, group_of(c));
    size_t t = (size_t)c->n_tokens, group = (size_t)group_of(c), dk = (size_t)(s->nope_dim + s->rope_dim), dv = (size_t)s->v_dim,
           n = (size_t)s->n_heads;
    m->q_low = exf_arena_take(arena, t * (size_t)s->q_rank);
    m->q = exf_arena_take(arena, t * n * dk);
    m->latent = exf_arena_take(arena, t * (size_t)(s->kv_rank + s->rope_dim));
    m->k = exf_arena_take(arena, t * group * dk);
    m->v = exf_arena_take(arena, t * group * dv);
    m->heads = exf_arena_take(arena, t * n * dv);
    m->scores = exf_arena_take(arena, c->b->attention_workspace(&shape));
}

/* Rotates the rotary part of each of n_heads heads of `width`; it begins `offset` floats into the head. */
static void rotate(float *x, int n_heads, int width, int offset, const exf_mixer_call *c)
{
    const exf_rope_spec *r = &c->a->rope[EXF_ROPE_MAIN];
    exf_rope_shape shape = {.n_tokens = c->n_tokens, .n_heads = n_heads, .head_dim = width, .ld = n_heads * width, .d = r->dim,
                            .offset = offset, .step = 1, .interleaved = r->interleaved};
    c->b->rope(c->q, x, &shape, c->rope_tables->cosine[EXF_ROPE_MAIN], c->rope_tables->sine[EXF_ROPE_MAIN]);
}

static void make_queries(const mla_space *m, const exf_mixer_call *c)
{
    const exf_mla_spec *s = &c->a->mla;
    int h = c->a->d_model, t = c->n_tokens, dk = s->nope_dim + s->rope_dim, n = s->n_heads * dk, rank = s->q_rank;
    if (rank) {
        exf_mixer_product(c, m->q_low, exf_mixer_input(c, 0), EXF_W_Q_A, t, rank, h);
        c->b->rmsnorm(c->q, m->q_low, rank, m->q_low, rank, c->w[EXF_W_Q_A_NORM], t, rank, c->a->norm_eps);
        exf_mixer_product(c, m->q, exf_f32(m->q_low), EXF_W_Q_B, t, n, rank);
    } else {
        exf_mixer_product(c, m->q, exf_mixer_input(c, 0), EXF_W_Q, t, n, h);
    }
    rotate(m->q, s->n_heads, dk, s->nope_dim, c);
}

/* Computes the latent and the shared key: the latent is normed, the key only rotated.  Copies the
 * key after each head's own part of its keys. */
static void make_latent(const mla_space *m, const exf_mixer_call *c)
{
    const exf_mla_spec *s = &c->a->mla;
    int h = c->a->d_model, t = c->n_tokens, n = s->kv_rank + s->rope_dim, dk = s->nope_dim + s->rope_dim, group = group_of(c);
    exf_mixer_product(c, m->latent, exf_mixer_input(c, 0), EXF_W_KV_A, t, n, h);
    c->b->rmsnorm(c->q, m->latent, n, m->latent, n, c->w[EXF_W_KV_A_NORM], t, s->kv_rank, c->a->norm_eps);
    rotate(m->latent, 1, n, s->kv_rank, c);
    c->b->repeat_columns(c->q, m->k + s->nope_dim, group * dk, group, dk, m->latent + s->kv_rank, n, t, s->rope_dim);
}

/* Expands keys and values of n heads from `first` on; kv_b holds per head the rows [nope | v]. */
static void expand_heads(const mla_space *m, const exf_mixer_call *c, int first, int n)
{
    const exf_mla_spec *s = &c->a->mla;
    int t = c->n_tokens, rank = s->kv_rank, ld = rank + s->rope_dim, dk = s->nope_dim + s->rope_dim, dv = s->v_dim,
        group = group_of(c);
    size_t head = (size_t)(s->nope_dim + dv) * (size_t)rank;
    exf_matrix w = exf_matrix_at(exf_mixer_weight(c, EXF_W_KV_B), (size_t)first * head), latent = exf_f32(m->latent);
    exf_product_steps keys = {.count = n, .y = dk, .w = head}, values = {.count = n, .y = dv, .w = head};
    c->b->gemm_xwt_many(c->q, m->k, group * dk, latent, ld, w, rank, &keys, t, s->nope_dim, rank);
    c->b->gemm_xwt_many(c->q, m->v, group * dv, latent, ld, exf_matrix_at(w, (size_t)s->nope_dim * (size_t)rank), rank, &values, t,
                        dv, rank);
}

/* Runs attention of the heads from `first` on, at most a group. */
static void attend_heads(const mla_space *m, const exf_mixer_call *c, int first)
{
    const exf_mla_spec *s = &c->a->mla;
    int dk = s->nope_dim + s->rope_dim, dv = s->v_dim, left = s->n_heads - first, n = left < group_of(c) ? left : group_of(c);
    exf_attention_shape shape = shape_of(c, n);
    exf_matrix all = exf_mixer_heads(&shape, m->heads);
    char *out = (char *)m->heads + (size_t)first * (size_t)dv * exf_number_bytes(all.number);
    expand_heads(m, c, first, n);
    c->b->attention(c->q, out, m->q + (size_t)first * (size_t)dk, m->k, m->v, &shape, m->scores);
}

static void run_mixer(const exf_mixer_call *c)
{
    const exf_mla_spec *s = &c->a->mla;
    mla_space m;
    carve_arrays(&m, c);
    if (!c->arena->base) return;
    make_queries(&m, c);
    make_latent(&m, c);
    for (int head = 0; head < s->n_heads; head += group_of(c)) attend_heads(&m, c, head);
    exf_attention_shape shape = shape_of(c, group_of(c));
    exf_mixer_output(c, 0, exf_mixer_heads(&shape, m.heads), EXF_W_O, c->n_tokens, s->n_heads * s->v_dim);
}

static double count_flops(const exf_architecture *a, int layer, double t)
{
    const exf_mla_spec *s = &a->mla;
    double h = a->d_model, n = s->n_heads, dk = s->nope_dim + s->rope_dim, dv = s->v_dim, kv = s->kv_rank, rank = s->q_rank;
    double q = rank > 0 ? rank * (h + n * dk) : h * n * dk;
    (void)layer;
    return 2 * t * (q + h * (kv + s->rope_dim) + kv * n * (s->nope_dim + dv) + n * dv * h) + n * (dk + dv) * t * (t + 1);
}

const exf_mixer exf_mixer_mla = {.name = "latent attention", .run = run_mixer, .flops = count_flops};
