/* mixer_compressed.c - attention over a sliding window and over compressed entries: low-rank
 * queries, each head normed; one key-value head for all of them; keys are also the values, so
 * the heads' outputs are rotated back; output projection in groups.
 *
 * The queries of all heads are a sequence's largest array by far, so they are computed in
 * blocks: small blocks on the CPU; on a GPU a block holds most whole sequences, since products
 * of a few rows would leave it idle. */
#include "pass/mixer.h"

#include <math.h>

/* ---- entries ------------------------------------------------------------------------------------ */

/* Returns how many compressed entries the layer makes of n_tokens: one for each complete window. */
static int entry_count(const exf_architecture *a, int layer, int n_tokens)
{
    int ratio = a->compressed.ratio[layer];
    return ratio ? n_tokens / ratio : 0;
}

/* Returns 1 if entries overlap and an indexer chooses among them. */
static int entries_overlap(const exf_architecture *a, int layer)
{
    return (a->traits[layer] & EXF_T_RATIO_SHORT) != 0;
}

/* Rows of n_heads heads of d floats; the last rope_dim of a head are rotated; row i has position first + i * step. */
typedef struct {
    int n_rows, n_heads, d;
    int first, step, inverse;
} rotation;

/* Returns the rotation as a rope shape; sets *cosine and *sine unless the call has no rope tables. */
static exf_rope_shape rope_of(const rotation *t, const exf_mixer_call *c, const float **cosine, const float **sine)
{
    int kind = c->a->compressed.ratio[c->layer] ? EXF_ROPE_COMPRESSED : EXF_ROPE_MAIN;
    const exf_rope_spec *r = &c->a->rope[kind];
    size_t at = (size_t)t->first * (size_t)(r->dim / 2);
    if (c->rope_tables) {
        *cosine = c->rope_tables->cosine[kind] + at;
        *sine = c->rope_tables->sine[kind] + at;
    }
    return (exf_rope_shape){.n_tokens = t->n_rows, .n_heads = t->n_heads, .head_dim = t->d, .ld = t->n_heads * t->d, .d = r->dim,
                            .offset = t->d - r->dim, .step = t->step, .interleaved = r->interleaved, .inverse = t->inverse};
}

static void rotate(float *x, const rotation *t, const exf_mixer_call *c)
{
    const float *cosine = NULL, *sine = NULL;
    exf_rope_shape shape = rope_of(t, c, &cosine, &sine);
    c->b->rope(c->q, x, &shape, cosine, sine);
}

/* Norms heads and rotates them; weights may be NULL. */
static void norm_and_rotate(float *x, const float *weights, const rotation *t, const exf_mixer_call *c)
{
    const float *cosine = NULL, *sine = NULL;
    exf_rope_shape shape = rope_of(t, c, &cosine, &sine);
    shape.normed = t->d;
    shape.norm = weights;
    shape.eps = c->a->norm_eps;
    c->b->rope(c->q, x, &shape, cosine, sine);
}

static int width_of(const exf_architecture *a, int layer, int d)
{
    return entries_overlap(a, layer) ? 2 * d : d;
}

/* The weights and width of a compressor: the attention's, or the indexer's narrower one. */
typedef struct {
    exf_role kv, gate, ape, norm;
    int d;
} compressor_part;

/* Computes entries [N, d] of the whole sequence: pooled, normed, rotated to their windows' first tokens. */
static void make_entries(float *entries, const compressor_part *part, const exf_mixer_call *c, float *scratch)
{
    const exf_architecture *a = c->a;
    int ratio = a->compressed.ratio[c->layer], n = entry_count(a, c->layer, c->n_tokens);
    int width = width_of(a, c->layer, part->d), whole = n * ratio;
    float *kv = scratch, *gate = scratch + (size_t)whole * (size_t)width;
    exf_compressor_shape shape = {.n_entries = n, .ratio = ratio, .d = part->d, .overlap = entries_overlap(a, c->layer)};
    exf_mixer_product(c, kv, exf_mixer_input(c, 0), part->kv, whole, width, a->d_model);
    exf_mixer_product(c, gate, exf_mixer_input(c, 0), part->gate, whole, width, a->d_model);
    c->b->compressor(c->q, entries, kv, gate, c->w[part->ape], &shape);
    norm_and_rotate(entries, c->w[part->norm], &(rotation){.n_rows = n, .n_heads = 1, .d = part->d, .step = ratio}, c);
}

/* ---- indexer --------------------------------------------------------------------------------- */

typedef struct {
    int on;       /* 0: every query attends to all entries that it sees, so none are chosen */
    float *keys;  /* [N, index_dim] */
    float *q, *weights, *work;
    unsigned char *chosen; /* [rows, N] */
} index_space;

/* Chooses entries for the queries from `first` on: bytes 0 or 1 [n_rows, entries visible to the last
 * row], or NULL if every visible entry is chosen. q_rank: the queries' normed low-rank rows. */
static const unsigned char *choose_entries(const index_space *s, const exf_mixer_call *c, const float *q_rank, int first,
                                           int n_rows)
{
    const exf_compressed_spec *p = &c->a->compressed;
    int h = c->a->d_model, heads = p->index_heads, d = p->index_dim, ratio = p->ratio[c->layer];
    if (!s->on || (first + n_rows) / ratio <= p->index_topk) return NULL; /* all visible entries are chosen */
    float scale = (float)(1 / sqrt((double)d * heads));
    exf_indexer_shape shape = {.first = first, .n_rows = n_rows, .n_heads = heads, .d = d, .ratio = ratio, .top_k = p->index_topk,
                               .n_entries = entry_count(c->a, c->layer, c->n_tokens)};
    exf_mixer_product(c, s->q, exf_f32(q_rank), EXF_W_INDEX_Q, n_rows, heads * d, p->q_rank);
    rotate(s->q, &(rotation){.n_rows = n_rows, .n_heads = heads, .d = d, .first = first, .step = 1}, c);
    c->b->gemm_xwt(c->q, s->weights, heads, exf_mixer_input(c, first), h, exf_mixer_weight(c, EXF_W_INDEX_WEIGHTS), h, n_rows,
                   heads, h, scale, 0);
    c->b->indexer(c->q, s->chosen, s->q, s->weights, s->keys, &shape, s->work);
    return s->chosen;
}

/* ---- the mixer -------------------------------------------------------------------------------- */

enum { HOST_ROWS = 128, DEVICE_ROWS = 2048 };

typedef struct {
    int rows;                       /* rows of a block */
    float *tokens, *entries;        /* [T, d], [N, d] of the sequence */
    float *pooled;                  /* scratch of the compressors */
    float *q_rank, *q;              /* [rows, q_rank], [rows, heads, d] */
    float *rounded;                 /* [rows, heads, d] bfloat16 outputs of the heads, if the device rounds them; else NULL */
    float *grouped, *scores;
    index_space index;
} space;

static rotation heads_turn(const exf_mixer_call *c, int first, int n)
{
    return (rotation){
        .n_rows = n, .n_heads = c->a->compressed.n_heads, .d = c->a->compressed.head_dim, .first = first, .step = 1};
}

static exf_compressed_attention_shape shape_of(const exf_mixer_call *c, int first, int n)
{
    const exf_compressed_spec *p = &c->a->compressed;
    return (exf_compressed_attention_shape){.first = first, .n_rows = n, .n_heads = p->n_heads, .d = p->head_dim,
                                            .window = p->window,
                                            .ratio = p->ratio[c->layer], .scale = (float)(1.0 / sqrt((double)p->head_dim))};
}

static void carve_arrays(space *s, const exf_mixer_call *c)
{
    const exf_architecture *a = c->a;
    const exf_compressed_spec *p = &a->compressed;
    int t = c->n_tokens, ratio = p->ratio[c->layer], most = !c->b->gpu ? HOST_ROWS : DEVICE_ROWS, rows = t < most ? t : most;
    int entries = entry_count(a, c->layer, t), widest = p->head_dim > p->index_dim ? p->head_dim : p->index_dim;
    size_t r = (size_t)rows, d = (size_t)p->head_dim;
    const float *cosine = NULL, *sine = NULL;
    rotation turn = heads_turn(c, 0, 1);
    exf_compressed_attention_shape shape = shape_of(c, 0, 1);
    exf_rope_shape rope = rope_of(&turn, c, &cosine, &sine);
    int rounds = c->b->gpu && c->b->gpu->compressed_heads_fit && c->b->gpu->compressed_heads_fit(&shape, &rope);
    s->rows = rows;
    s->tokens = exf_arena_take(c->arena, (size_t)t * d);
    s->entries = exf_arena_take(c->arena, (size_t)entries * d);
    s->pooled = exf_arena_take(c->arena, 2 * (size_t)entries * (size_t)ratio * (size_t)width_of(a, c->layer, widest));
    s->q_rank = exf_arena_take(c->arena, r * (size_t)p->q_rank);
    s->q = exf_arena_take(c->arena, r * (size_t)p->n_heads * d);
    s->rounded = rounds ? exf_arena_take(c->arena, r * (size_t)p->n_heads * d / 2) : NULL;
    s->grouped = exf_arena_take(c->arena, r * (size_t)p->o_groups * (size_t)p->o_rank);
    s->scores = exf_arena_take(c->arena, c->b->compressed_attention_workspace(p->n_heads, rows, t, p->window, ratio));
    size_t n = (size_t)entries;
    s->index = (index_space){.on = entries_overlap(a, c->layer) && entries > p->index_topk};
    if (!s->index.on) return;
    s->index.keys = exf_arena_take(c->arena, n * (size_t)p->index_dim);
    s->index.q = exf_arena_take(c->arena, r * (size_t)p->index_heads * (size_t)p->index_dim);
    s->index.weights = exf_arena_take(c->arena, r * (size_t)p->index_heads);
    s->index.work = exf_arena_take(c->arena, c->b->indexer_workspace(rows, entries));
    s->index.chosen = exf_take_bytes(c->arena, r * n);
}

/* Replaces the queries by the heads' outputs, in place or rounded into s->rounded. */
static exf_matrix attend_heads(const space *s, const exf_mixer_call *c, const exf_compressed_keys *keys, int first, int n)
{
    exf_compressed_attention_shape shape = shape_of(c, first, n);
    rotation turn = heads_turn(c, first, n);
    if (s->rounded && exf_products_round(c)) {
        const float *cosine = NULL, *sine = NULL;
        uint16_t *out = (uint16_t *)(void *)s->rounded;
        exf_rope_shape rope = rope_of(&turn, c, &cosine, &sine);
        c->b->gpu->compressed_heads(c->q, out, s->q, keys, &shape, &rope, cosine, sine, c->a->norm_eps, s->scores);
        return exf_bf16(out);
    }
    norm_and_rotate(s->q, NULL, &turn, c);
    c->b->compressed_attention(c->q, s->q, s->q, keys, &shape, s->scores);
    turn.inverse = 1;
    rotate(s->q, &turn, c);
    return exf_f32(s->q);
}

/* Runs n rows from `first` on: their queries, their heads, and the output projection, each group of heads by its own rows of
 * wo_a, then all by wo_b. */
static void run_block(const space *s, const exf_mixer_call *c, int first, int n)
{
    const exf_architecture *a = c->a;
    const exf_compressed_spec *p = &a->compressed;
    int wide = p->n_heads * p->head_dim, part = wide / p->o_groups, low = p->o_groups * p->o_rank;
    exf_product_steps steps = {.count = p->o_groups, .y = p->o_rank, .x = part, .w = (size_t)p->o_rank * (size_t)part};
    exf_mixer_product(c, s->q_rank, exf_mixer_input(c, first), EXF_W_Q_A, n, p->q_rank, a->d_model);
    c->b->rmsnorm(c->q, s->q_rank, p->q_rank, s->q_rank, p->q_rank, c->w[EXF_W_Q_A_NORM], n, p->q_rank, a->norm_eps);
    exf_mixer_product(c, s->q, exf_f32(s->q_rank), EXF_W_Q_B, n, wide, p->q_rank);
    exf_compressed_keys keys = {s->tokens, s->entries, choose_entries(&s->index, c, s->q_rank, first, n), c->w[EXF_W_SINK]};
    exf_matrix heads = attend_heads(s, c, &keys, first, n);
    c->b->gemm_xwt_many(c->q, s->grouped, low, heads, wide, exf_mixer_weight(c, EXF_W_O_A), part, &steps, n, p->o_rank, part);
    exf_mixer_output(c, first, exf_f32(s->grouped), EXF_W_O_B, n, low);
}

/* Computes the keys of the whole sequence, the tokens', the entries' and the indexer's, and then the queries in blocks. */
static void run_mixer(const exf_mixer_call *c)
{
    const exf_architecture *a = c->a;
    int d = a->compressed.head_dim, t = c->n_tokens;
    compressor_part of_attention = {EXF_W_COMPRESS_KV, EXF_W_COMPRESS_GATE, EXF_W_COMPRESS_APE, EXF_W_COMPRESS_NORM, d};
    compressor_part of_index = {EXF_W_INDEX_KV, EXF_W_INDEX_GATE, EXF_W_INDEX_APE, EXF_W_INDEX_NORM, a->compressed.index_dim};
    space s;
    carve_arrays(&s, c);
    if (!c->arena->base) return;
    exf_mixer_product(c, s.tokens, exf_mixer_input(c, 0), EXF_W_KV, t, d, a->d_model);
    norm_and_rotate(s.tokens, c->w[EXF_W_KV_NORM], &(rotation){.n_rows = t, .n_heads = 1, .d = d, .step = 1}, c);
    if (entry_count(a, c->layer, t)) make_entries(s.entries, &of_attention, c, s.pooled);
    if (s.index.on) make_entries(s.index.keys, &of_index, c, s.pooled);
    for (int first = 0; first < t; first += s.rows) run_block(&s, c, first, t - first < s.rows ? t - first : s.rows);
}

static double count_flops(const exf_architecture *a, int layer, double t)
{
    const exf_compressed_spec *p = &a->compressed;
    double h = a->d_model, d = p->head_dim, wide = p->n_heads * d, low = (double)p->o_groups * p->o_rank, ratio = p->ratio[layer];
    double projections = h * p->q_rank + p->q_rank * wide + h * d + wide * p->o_rank + low * h;
    double keys = t < p->window ? t : p->window; /* keys that a query is scored against */
    double index_q = (double)p->index_heads * p->index_dim, entries = floor(t / (ratio > 0 ? ratio : 1)), index = 0;
    if (entries_overlap(a, layer) && entries > p->index_topk)
        index = 2 * t * h * (4.0 * p->index_dim + p->index_heads) + 2 * t * index_q * p->q_rank + t * entries * index_q;
    if (ratio > 0) {
        keys += t / ratio / 2;
        projections += h * d * (entries_overlap(a, layer) ? 4 : 2);
    }
    return 2 * t * projections + 4 * t * wide * keys + index;
}

const exf_mixer exf_mixer_compressed = {.name = "compressed", .run = run_mixer, .flops = count_flops};
