/* compressed_entries.c - see compressed_internal.h. */
#include "pass/compressed_internal.h"

int exf_entry_count(const exf_architecture *a, int layer, int n_tokens)
{
    int ratio = a->compressed.ratio[layer];
    return ratio ? n_tokens / ratio : 0;
}

int exf_entries_overlap(const exf_architecture *a, int layer)
{
    return (a->traits[layer] & EXF_T_RATIO_SHORT) != 0;
}

exf_rope_shape exf_compressed_rope(const exf_rotation *t, const exf_mixer_call *c, const float **cosine, const float **sine)
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

void exf_compressed_rotate(float *x, const exf_rotation *t, const exf_mixer_call *c)
{
    const float *cosine = NULL, *sine = NULL;
    exf_rope_shape shape = exf_compressed_rope(t, c, &cosine, &sine);
    c->b->rope(c->q, x, &shape, cosine, sine);
}

/* Returns the tokens in complete windows. */
static size_t whole_tokens(const exf_architecture *a, int layer, int n_tokens)
{
    return (size_t)exf_entry_count(a, layer, n_tokens) * (size_t)a->compressed.ratio[layer];
}

static int width_of(const exf_architecture *a, int layer, int d)
{
    return exf_entries_overlap(a, layer) ? 2 * d : d;
}

size_t exf_entries_scratch(const exf_architecture *a, int layer, int n_tokens, int d)
{
    return 2 * whole_tokens(a, layer, n_tokens) * (size_t)width_of(a, layer, d);
}

void exf_compressed_entries(float *entries, const exf_compressor_part *part, const exf_mixer_call *c, float *scratch)
{
    const exf_architecture *a = c->a;
    int h = a->d_model, ratio = a->compressed.ratio[c->layer], n = exf_entry_count(a, c->layer, c->n_tokens);
    int width = width_of(a, c->layer, part->d), whole = n * ratio;
    float *kv = scratch, *gate = scratch + (size_t)whole * (size_t)width;
    exf_compressor_shape shape = {.n_entries = n, .ratio = ratio, .d = part->d, .overlap = exf_entries_overlap(a, c->layer)};
    c->b->gemm_xwt(c->q, kv, width, exf_mixer_input(c, 0), h, exf_mixer_weight(c, part->kv), h, whole, width, h, 1, 0);
    c->b->gemm_xwt(c->q, gate, width, exf_mixer_input(c, 0), h, exf_mixer_weight(c, part->gate), h, whole, width, h, 1, 0);
    c->b->compressor(c->q, entries, kv, gate, c->w[part->ape], &shape);
    c->b->rmsnorm(c->q, entries, part->d, entries, part->d, c->w[part->norm], n, part->d, a->norm_eps);
    exf_compressed_rotate(entries, &(exf_rotation){.n_rows = n, .n_heads = 1, .d = part->d, .step = ratio}, c);
}
