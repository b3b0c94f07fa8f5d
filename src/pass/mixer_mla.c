/* mixer_mla.c - multi-head latent attention: keys and values of all heads are expanded from one
 * normed latent per token; beside it is one rotated key that all heads share; q is projected
 * directly or through a normed low rank.
 *
 * Keys and values are expanded, not absorbed into q and o: the reference does the same, and
 * long sequences cost fewer operations.  Heads are expanded a group at a time, since the
 * expansion of all is as large as q and the output together: one head on the CPU, as many as
 * keep a GPU busy on a GPU.
 *
 * In a layer with an indexer a query sees the index_topk tokens whose keys its small index heads score best.  These heads come from
 * the low-rank query, one key of a token serves all of them.  A sequence of at most index_topk tokens needs none of it: each sees
 * all.  The choice is a byte for every pair of tokens; scores are held for a block of queries. */
#include "pass/mixer.h"

#include <math.h>

static const double INDEX_NORM_EPS = 1e-6;
enum { HOST_ROWS = 128, DEVICE_ROWS = 2048 };

/* What the indexer computes with; on: 0 where every token sees all before it. */
typedef struct {
    int on, rows;          /* rows: queries of a block */
    float *keys;           /* [T, index_dim] */
    float *q, *weights;    /* [rows, heads, index_dim], [rows, heads] */
    float *work;
    unsigned char *chosen; /* [T, T] */
} index_space;

typedef struct {
    float *q_low;  /* [T, q_rank] */
    float *q;      /* [T, heads, nope + rope] */
    float *latent; /* [T, kv_rank + rope]: the latent, the shared key */
    float *k, *v;  /* [T, group, nope + rope], [T, group, v_dim] */
    float *heads;  /* [T, heads, v_dim], bfloat16 if products round */
    float *scores;
    index_space index;
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
    int n_tokens = c->n_tokens, most = !c->b->gpu ? HOST_ROWS : DEVICE_ROWS, rows = n_tokens < most ? n_tokens : most;
    m->index = (index_space){.on = s->index_topk > 0 && n_tokens > s->index_topk, .rows = rows};
    if (!m->index.on) return; /* else every layer has an indexer */
    size_t r = (size_t)rows, heads = (size_t)s->index_heads, d = (size_t)s->index_dim;
    m->index.keys = exf_arena_take(arena, t * d);
    m->index.q = exf_arena_take(arena, r * heads * d);
    m->index.weights = exf_arena_take(arena, r * heads);
    m->index.work = exf_arena_take(arena, c->b->indexer_workspace(rows, n_tokens));
    m->index.chosen = exf_take_bytes(arena, t * t);
}

/* Rotates the rotary part of each of n_heads heads of `width`; it begins `offset` floats into the head. */
static void rotate(float *x, int n_heads, int width, int offset, const exf_mixer_call *c)
{
    const exf_rope_spec *r = &c->a->rope[EXF_ROPE_MAIN];
    exf_rope_shape shape = {.n_tokens = c->n_tokens, .n_heads = n_heads, .head_dim = width, .ld = n_heads * width, .d = r->dim,
                            .offset = offset, .step = 1, .interleaved = r->interleaved};
    c->b->rope(c->q, x, &shape, c->rope_tables->cosine[EXF_ROPE_MAIN], c->rope_tables->sine[EXF_ROPE_MAIN]);
}

/* Returns what the norms of the low ranks add to the mean square. */
static double norm_eps(const exf_mixer_call *c)
{
    return c->a->mla.norm_eps > 0 ? c->a->mla.norm_eps : c->a->norm_eps;
}

static void make_queries(const mla_space *m, const exf_mixer_call *c)
{
    const exf_mla_spec *s = &c->a->mla;
    int h = c->a->d_model, t = c->n_tokens, dk = s->nope_dim + s->rope_dim, n = s->n_heads * dk, rank = s->q_rank;
    if (rank) {
        exf_mixer_product(c, m->q_low, exf_mixer_input(c, 0), EXF_W_Q_A, t, rank, h);
        c->b->rmsnorm(c->q, m->q_low, rank, m->q_low, rank, c->w[EXF_W_Q_A_NORM], t, rank, norm_eps(c));
        exf_mixer_product(c, m->q, exf_f32(m->q_low), EXF_W_Q_B, t, n, rank);
    } else {
        exf_mixer_product(c, m->q, exf_mixer_input(c, 0), EXF_W_Q, t, n, h);
    }
    rotate(m->q, s->n_heads, dk, s->nope_dim, c);
    if (c->rope_tables->query_scale) c->b->scale_rows(c->q, m->q, c->rope_tables->query_scale, t, n);
}

/* ---- indexer ---------------------------------------------------------------------------------- */

/* Rotates the first rope_dim dimensions of n_heads index heads of n_rows tokens from `first` on. */
static void rotate_index(float *x, int first, int n_rows, int n_heads, const exf_mixer_call *c)
{
    const exf_mla_spec *s = &c->a->mla;
    int d = c->a->rope[EXF_ROPE_MAIN].dim;
    size_t at = (size_t)first * (size_t)(d / 2);
    exf_rope_shape shape = {.n_tokens = n_rows, .n_heads = n_heads, .head_dim = s->index_dim, .ld = n_heads * s->index_dim, .d = d,
                            .step = 1, .interleaved = s->index_interleaved};
    c->b->rope(c->q, x, &shape, c->rope_tables->cosine[EXF_ROPE_MAIN] + at, c->rope_tables->sine[EXF_ROPE_MAIN] + at);
}

/* Chooses for n queries from `first` on. */
static void choose_block(const mla_space *m, const exf_mixer_call *c, int first, int n)
{
    const exf_mla_spec *s = &c->a->mla;
    const index_space *x = &m->index;
    int heads = s->index_heads, d = s->index_dim, h = c->a->d_model, t = c->n_tokens;
    float scale = (float)(1 / sqrt((double)d * heads));
    exf_indexer_shape shape = {.first = first, .n_rows = n, .n_heads = heads, .d = d, .ratio = 1, .top_k = s->index_topk,
                               .n_entries = t, .ld = t};
    exf_mixer_product(c, x->q, exf_f32(m->q_low + (size_t)first * (size_t)s->q_rank), EXF_W_INDEX_Q, n, heads * d, s->q_rank);
    rotate_index(x->q, first, n, heads, c);
    c->b->gemm_xwt(c->q, x->weights, heads, exf_mixer_input(c, first), h, exf_mixer_weight(c, EXF_W_INDEX_WEIGHTS), h, n, heads, h,
                   scale, 0);
    c->b->indexer(c->q, x->chosen + (size_t)first * (size_t)t, x->q, x->weights, x->keys, &shape, x->work);
}

/* ---- keys, values and heads ------------------------------------------------------------------- */

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

static void run_mixer(const exf_mixer_call *c)
{
    const exf_mla_spec *s = &c->a->mla;
    int h = c->a->d_model, t = c->n_tokens, wide = s->kv_rank + s->rope_dim, dk = s->nope_dim + s->rope_dim, group = group_of(c);
    mla_space m;
    carve_arrays(&m, c);
    if (!c->arena->base) return;
    make_queries(&m, c);
    const index_space *x = &m.index;
    if (x->on) { /* the tokens that each token sees, from the low-rank queries of all */
        exf_mixer_product(c, x->keys, exf_mixer_input(c, 0), EXF_W_INDEX_KV, t, s->index_dim, h);
        c->b->layernorm(c->q, x->keys, c->w[EXF_W_INDEX_NORM], c->w[EXF_W_INDEX_NORM_BIAS], t, s->index_dim, INDEX_NORM_EPS);
        rotate_index(x->keys, 0, t, 1, c);
        for (int first = 0; first < t; first += x->rows) choose_block(&m, c, first, t - first < x->rows ? t - first : x->rows);
    }
    /* the latent is normed, the shared key only rotated, and copied after each head's own part of its keys */
    exf_mixer_product(c, m.latent, exf_mixer_input(c, 0), EXF_W_KV_A, t, wide, h);
    c->b->rmsnorm(c->q, m.latent, wide, m.latent, wide, c->w[EXF_W_KV_A_NORM], t, s->kv_rank, norm_eps(c));
    rotate(m.latent, 1, wide, s->kv_rank, c);
    c->b->repeat_columns(c->q, m.k + s->nope_dim, group * dk, group, dk, m.latent + s->kv_rank, wide, t, s->rope_dim);
    exf_attention_shape shape = shape_of(c, group);
    exf_matrix heads = exf_mixer_heads(&shape, m.heads);
    for (int first = 0; first < s->n_heads; first += group) { /* a group of heads at a time */
        int n = s->n_heads - first < group ? s->n_heads - first : group;
        char *out = (char *)m.heads + (size_t)first * (size_t)s->v_dim * exf_number_bytes(heads.number);
        shape = shape_of(c, n);
        shape.chosen = x->on ? x->chosen : NULL;
        expand_heads(&m, c, first, n);
        c->b->attention(c->q, out, m.q + (size_t)first * (size_t)dk, m.k, m.v, &shape, m.scores);
    }
    exf_mixer_output(c, 0, heads, EXF_W_O, t, s->n_heads * s->v_dim);
}

static double count_flops(const exf_architecture *a, int layer, double t)
{
    const exf_mla_spec *s = &a->mla;
    double h = a->d_model, n = s->n_heads, dk = s->nope_dim + s->rope_dim, dv = s->v_dim, kv = s->kv_rank, rank = s->q_rank;
    double q = rank > 0 ? rank * (h + n * dk) : h * n * dk, index_q = (double)s->index_heads * s->index_dim, index = 0;
    (void)layer;
    if (s->index_topk > 0 && t > s->index_topk)
        index = 2 * t * (index_q * rank + h * (s->index_dim + s->index_heads)) + t * (t + 1) * index_q;
    double projections = q + h * (kv + s->rope_dim) + kv * n * (s->nope_dim + dv) + n * dv * h;
    return 2 * t * projections + n * (dk + dv) * t * (t + 1) + index;
}

const exf_mixer exf_mixer_mla = {.name = "latent attention", .run = run_mixer, .flops = count_flops};
