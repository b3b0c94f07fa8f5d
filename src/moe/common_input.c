/* common_input.c - see common_input.h. */
#include "moe/common_input.h"

#include "moe/residual_site.h"

int exf_common_input_tokens(const exf_moe_layer *l, size_t sequence)
{
    int n = l->batch->span[sequence].n_tokens, wanted = l->lane->observer->common_input_tokens;
    return n < wanted ? n : wanted;
}

int exf_common_input_position(const exf_moe_layer *l, size_t sequence, int i)
{
    int n = l->batch->span[sequence].n_tokens, wanted = l->lane->observer->common_input_tokens;
    return n <= wanted ? i : (int)(((int64_t)2 * i + 1) * n / ((int64_t)2 * wanted));
}

static exf_matrix take_matrix(exf_arena *arena, size_t elements, exf_number number)
{
    return (exf_matrix){exf_take_bytes(arena, elements * exf_number_bytes(number)), number};
}

/* Takes `outputs` from the arena first: a matrix library's results may depend on alignment, which is
 * then the same for every arena size. */
void exf_common_carve(exf_common_arrays *c, exf_arena *arena, const exf_backend *b, exf_compute compute, const exf_architecture *a,
                      int n_tokens)
{
    size_t n = (size_t)n_tokens, h = (size_t)a->d_model, e = (size_t)a->n_experts;
    exf_number number = exf_moe_number(compute);
    exf_expert_shape shape = exf_expert_shape_of(a, n_tokens, a->n_experts, a->n_experts, a->d_expert);
    c->outputs = take_matrix(arena, n * e * h, number);
    c->experts = exf_take_bytes(arena, b->experts_workspace(&shape, number));
    c->hidden = exf_arena_take(arena, n * exf_row_width(a));
    c->u = exf_arena_take(arena, a->residual.streams > 1 ? n * h : 0);
    c->mixing = exf_arena_take(arena, n * (size_t)exf_residual_mixing(a));
    c->input = number == EXF_NUMBER_F32 ? exf_arena_take(arena, n * h) : NULL;
    c->x = number == EXF_NUMBER_F32 ? exf_f32(c->input) : take_matrix(arena, n * h, number);
    c->row = (int32_t *)(void *)exf_arena_take(arena, n);
    c->ids = (int32_t *)(void *)exf_arena_take(arena, n * e);
}

void exf_common_compute(const exf_moe_layer *l, exf_workspace *w, const exf_common_arrays *c, int n)
{
    const exf_architecture *a = &l->model->arch;
    const exf_layer_weights *lw = l->weights;
    const float *norm = lw->w[EXF_W_FFN_NORM];
    exf_expert_shape shape = exf_expert_shape_of(a, n, a->n_experts, a->n_experts, a->d_expert);
    exf_expert_matrices m = {exf_matrix_of(lw, EXF_W_EXPERT_GATE), exf_matrix_of(lw, EXF_W_EXPERT_UP),
                             exf_matrix_of(lw, EXF_W_EXPERT_DOWN)};
    exf_residual_site site = exf_residual_site_of(lw, EXF_W_FFN_MIX, EXF_W_FFN_MIX_BASE, EXF_W_FFN_MIX_SCALE);
    w->b->gather_rows(w->q, c->hidden, l->rows, c->row, n, (int)exf_row_width(a));
    const float *u = exf_residual_read(w->b, w->q, a, &site, c->hidden, n, c->u, c->mixing);
    if (c->x.number == EXF_NUMBER_BF16)
        w->b->gpu->rmsnorm_rounded(w->q, exf_moe_data(c->x), NULL, u, norm, n, a->d_model, a->norm_eps);
    else
        w->b->rmsnorm(w->q, c->input, a->d_model, u, a->d_model, norm, n, a->d_model, a->norm_eps);
    w->b->experts(w->q, c->outputs, c->x, c->ids, &m, &shape, c->experts);
    w->times.flops += 6.0 * n * a->n_experts * a->d_model * a->d_expert;
}

size_t exf_common_floats(const exf_backend *b, exf_compute compute, const exf_architecture *a)
{
    exf_arena arena = {NULL, 0};
    exf_common_arrays c;
    exf_common_carve(&c, &arena, b, compute, a, b->gpu ? exf_gram_tokens(a->n_experts) : EXF_COMMON_INPUT_UNIT);
    return arena.used;
}
