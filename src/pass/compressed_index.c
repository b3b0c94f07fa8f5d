/* compressed_index.c - see compressed_internal.h. */
#include "pass/compressed_internal.h"

#include <math.h>

static const exf_compressor_part *part_of(const exf_architecture *a, exf_compressor_part *p)
{
    *p = (exf_compressor_part){EXF_W_INDEX_KV, EXF_W_INDEX_GATE, EXF_W_INDEX_APE, EXF_W_INDEX_NORM, a->compressed.index_dim};
    return p;
}

void exf_index_carve(exf_index_space *s, const exf_mixer_call *c, int rows)
{
    const exf_compressed_spec *p = &c->a->compressed;
    size_t r = (size_t)rows, n = (size_t)exf_entry_count(c->a, c->layer, c->n_tokens);
    *s = (exf_index_space){.on = exf_entries_overlap(c->a, c->layer) && n > (size_t)p->index_topk};
    if (!s->on) return;
    s->keys = exf_arena_take(c->arena, n * (size_t)p->index_dim);
    s->q = exf_arena_take(c->arena, r * (size_t)p->index_heads * (size_t)p->index_dim);
    s->weights = exf_arena_take(c->arena, r * (size_t)p->index_heads);
    s->work = exf_arena_take(c->arena, c->b->indexer_workspace(rows, (int)n));
    s->chosen = (unsigned char *)exf_arena_take(c->arena, (r * n + sizeof(float) - 1) / sizeof(float));
}

void exf_index_keys(const exf_index_space *s, const exf_mixer_call *c, float *scratch)
{
    exf_compressor_part part;
    if (s->on) exf_compressed_entries(s->keys, part_of(c->a, &part), c, scratch);
}

const unsigned char *exf_index_choose(const exf_index_space *s, const exf_mixer_call *c, const float *q_rank, int first, int n_rows)
{
    const exf_compressed_spec *p = &c->a->compressed;
    int h = c->a->d_model, heads = p->index_heads, d = p->index_dim, ratio = p->ratio[c->layer];
    if (!s->on || (first + n_rows) / ratio <= p->index_topk) return NULL; /* all visible entries are chosen */
    float scale = (float)(1 / sqrt((double)d * heads));
    exf_indexer_shape shape = {.first = first, .n_rows = n_rows, .n_heads = heads, .d = d, .ratio = ratio, .top_k = p->index_topk,
                               .n_entries = exf_entry_count(c->a, c->layer, c->n_tokens)};
    c->b->gemm_xwt(c->q, s->q, heads * d, exf_f32(q_rank), p->q_rank, exf_mixer_weight(c, EXF_W_INDEX_Q), p->q_rank, n_rows,
                   heads * d, p->q_rank, 1, 0);
    exf_compressed_rotate(s->q, &(exf_rotation){.n_rows = n_rows, .n_heads = heads, .d = d, .first = first, .step = 1}, c);
    c->b->gemm_xwt(c->q, s->weights, heads, exf_mixer_input(c, first), h, exf_mixer_weight(c, EXF_W_INDEX_WEIGHTS), h, n_rows,
                   heads, h, scale, 0);
    c->b->indexer(c->q, s->chosen, s->q, s->weights, s->keys, &shape, s->work);
    return s->chosen;
}

double exf_index_flops(const exf_architecture *a, int layer, double t)
{
    const exf_compressed_spec *p = &a->compressed;
    double q = (double)p->index_heads * p->index_dim, n = floor(t / (p->ratio[layer] ? p->ratio[layer] : 1));
    if (!exf_entries_overlap(a, layer) || n <= p->index_topk) return 0;
    return 2 * t * a->d_model * (4.0 * p->index_dim + p->index_heads) + 2 * t * q * p->q_rank + t * n * q;
}
