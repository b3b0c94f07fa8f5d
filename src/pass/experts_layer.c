/* experts_layer.c - what all parts of the experts ask of a layer: where its rows are, whether hidden states are finite,
 * the arrays of a block, and the products with the weights that are loaded; see experts.h. */
#include "pass/experts_layer.h"

#include "base/err.h"

float *exf_moe_rows(const exf_moe_layer *l, size_t row)
{
    return l->rows + (row - l->group.row) * exf_row_width(&l->model->arch);
}

float *exf_moe_mixing(const exf_moe_layer *l, size_t row)
{
    return l->mixing ? l->mixing + row * (size_t)exf_residual_mixing(&l->model->arch) : NULL;
}

exf_code exf_moe_wait_if_timed(const exf_moe_layer *l, exf_workspace *w, exf_err *err)
{
    return l->timed ? w->b->finish(w->q, err) : EXF_OK;
}

/* ---- finite hidden states ------------------------------------------------------------------------ */

exf_code exf_moe_not_finite(const exf_moe_layer *l, size_t row, exf_err *err)
{
    size_t sequence = exf_sequence_of(l->batch, 0, row);
    return exf_fail(err, EXF_NUMERIC, "layer %d: the hidden state of sequence %zu at position %d is not finite", l->layer, sequence,
                    (int)(row - l->batch->span[sequence].offset));
}

exf_code exf_moe_check_finite(const exf_moe_layer *l, exf_err *err)
{
    const exf_workspace *w = &l->space[0];
    uint64_t at;
    if (!w->b->gpu) return EXF_OK;
    exf_code rc = w->b->download(w->q, &at, l->not_finite, sizeof at, err);
    return rc != EXF_OK || at == ~(uint64_t)0 ? rc : exf_moe_not_finite(l, (size_t)at / exf_row_width(&l->model->arch), err);
}

/* ---- the arrays of a block ------------------------------------------------------------------------ */

exf_number exf_moe_number(exf_compute compute)
{
    return compute == EXF_COMPUTE_BF16 ? EXF_NUMBER_BF16 : EXF_NUMBER_F32;
}

exf_expert_shape exf_expert_shape_of(const exf_architecture *a, int n_tokens, int n_experts, int top_k, int width)
{
    return (exf_expert_shape){.n_tokens = n_tokens, .n_experts = n_experts, .top_k = top_k, .d_model = a->d_model,
                              .d_expert = width, .limit = (float)a->swiglu_limit,
                              .slope = (float)a->swiglu_slope, .shift = (float)a->swiglu_shift, .gelu = a->gelu};
}

exf_matrix exf_take_matrix(exf_arena *arena, size_t elements, exf_number number)
{
    return (exf_matrix){exf_take_bytes(arena, elements * exf_number_bytes(number)), number};
}

void exf_moe_carve(exf_moe_arrays *m, exf_arena *arena, const exf_backend *b, exf_compute compute, const exf_architecture *a,
                   int n_tokens, const exf_moe_needs *needs)
{
    size_t t = (size_t)n_tokens, h = (size_t)a->d_model, k = (size_t)a->top_k, shown = t < EXF_MOE_BLOCK ? t : EXF_MOE_BLOCK;
    exf_number number = exf_moe_number(compute);
    int streams = a->residual.streams > 1, normed = a->residual.normed, wide = number == EXF_NUMBER_F32;
    const exf_expert_shape networks[] = {exf_expert_shape_of(a, n_tokens, a->n_experts, a->top_k, a->d_expert), /* routed */
                                         exf_expert_shape_of(a, n_tokens, 1, 1, a->d_shared),
                                         exf_expert_shape_of(a, n_tokens, 1, 1, a->d_ffn)}; /* dense */
    size_t workspace = 0; /* bytes that the experts of any layer need */
    for (int i = 0; i < 3; i++) {
        size_t bytes = i == 0 || networks[i].d_expert ? b->experts_workspace(&networks[i], number) : 0;
        if (bytes > workspace) workspace = bytes;
    }
    m->u = exf_arena_take(arena, streams || normed ? t * h : 0);
    m->input = wide || needs->input ? exf_arena_take(arena, t * h) : NULL;
    m->x = wide ? exf_f32(m->input) : exf_take_matrix(arena, t * h, number);
    m->outputs = exf_take_matrix(arena, t * k * h, number);
    m->shared = exf_take_matrix(arena, a->d_shared || a->d_ffn ? t * h : 0, number);
    m->shared_weights = exf_arena_take(arena, a->d_shared ? t : 0);
    m->routed = needs->routed || normed ? exf_arena_take(arena, t * h) : NULL;
    m->block = needs->block || streams || normed ? exf_arena_take(arena, t * h) : NULL;
    m->probe_outputs = exf_take_matrix(arena, needs->probes ? t * k * h : 0, number);
    m->probe_routed = exf_arena_take(arena, needs->probes ? t * h : 0);
    m->probe_ids = exf_take_bytes(arena, sizeof(int32_t) * (needs->probes ? t * k : 0));
    m->probe_source = exf_take_bytes(arena, sizeof(int32_t) * (needs->probes ? t * k : 0));
    m->only = exf_take_bytes(arena, sizeof(int32_t) * t);
    m->shown_outputs = exf_arena_take(arena, needs->shown && !wide ? shown * k * h : 0);
    m->experts = exf_take_bytes(arena, workspace);
}

/* ---- products: routed experts, all at once or part after part; shared experts, or the network of a dense layer - */

static exf_expert_matrices matrices_of(const exf_layer_weights *lw, exf_role gate, exf_role up, exf_role down)
{
    return (exf_expert_matrices){.gate = exf_matrix_of(lw, gate), .up = exf_matrix_of(lw, up), .down = exf_matrix_of(lw, down)};
}

exf_expert_matrices exf_routed_matrices(const exf_layer_weights *lw)
{
    exf_expert_matrices m = matrices_of(lw, EXF_W_EXPERT_GATE, EXF_W_EXPERT_UP, EXF_W_EXPERT_DOWN);
    m.gate_bias = lw->w[EXF_W_EXPERT_GATE_BIAS];
    m.up_bias = lw->w[EXF_W_EXPERT_UP_BIAS];
    m.down_bias = lw->w[EXF_W_EXPERT_DOWN_BIAS];
    return m;
}

exf_code exf_moe_run_experts(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, exf_matrix outputs,
                             const int32_t *ids, int n, int keep, exf_err *err)
{
    const exf_architecture *a = &l->model->arch;
    int step = l->parts.part_experts ? l->parts.part_experts : a->n_experts;
    exf_code rc = EXF_OK;
    for (int first = 0; first < a->n_experts; first += step) {
        exf_expert_shape shape =
            exf_expert_shape_of(a, n, a->n_experts - first < step ? a->n_experts - first : step, a->top_k, a->d_expert);
        shape.first = first;
        shape.keep = keep;
        if (l->parts.part_experts) { /* the next part overwrites this one: its products must have ended */
            EXF_TRY(w->b->finish(w->q, err));
            EXF_TRY(l->parts.next(l->parts.self, err));
        }
        exf_expert_matrices routed = exf_routed_matrices(l->weights);
        w->b->experts(w->q, outputs, m->x, ids, &routed, &shape, m->experts);
    }
out:
    return rc;
}

int exf_moe_has_shared(const exf_moe_layer *l)
{
    return l->moe_index < 0 || exf_matrix_of(l->weights, EXF_W_SHARED_GATE).p != NULL;
}

void exf_moe_run_shared(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, const float *hidden, int n)
{
    const exf_architecture *a = &l->model->arch;
    const exf_layer_weights *lw = l->weights;
    int dense = l->moe_index < 0, width = dense ? a->d_ffn : a->d_shared;
    exf_expert_matrices network = dense ? matrices_of(lw, EXF_W_DENSE_GATE, EXF_W_DENSE_UP, EXF_W_DENSE_DOWN)
                                        : matrices_of(lw, EXF_W_SHARED_GATE, EXF_W_SHARED_UP, EXF_W_SHARED_DOWN);
    exf_expert_shape shape = exf_expert_shape_of(a, n, 1, 1, width);
    const float *gate = lw->w[EXF_W_SHARED_SWITCH], *norm = lw->w[EXF_W_SHARED_NORM];
    exf_matrix x = m->x;
    if (!exf_moe_has_shared(l)) return;
    if (norm) {
        x = (exf_matrix){m->u, x.number};
        if (x.number == EXF_NUMBER_BF16)
            w->b->gpu->rmsnorm_rounded(w->q, exf_moe_data(x), NULL, hidden, norm, n, a->d_model, a->norm_eps);
        else
            w->b->rmsnorm(w->q, m->u, a->d_model, hidden, a->d_model, norm, n, a->d_model, a->norm_eps);
    }
    w->b->zero(w->q, m->only, (size_t)n * sizeof *m->only);
    w->b->experts(w->q, m->shared, x, m->only, &network, &shape, m->experts);
    w->times.flops += 6.0 * n * a->d_model * width;
    if (!dense && gate) w->b->switch_weights(w->q, m->shared_weights, m->input, gate, n, a->d_model);
}

/* ---- the sum of a block whose parts are normed --------------------------------------------------- */

void exf_moe_sum_normed(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, float *hidden, int n)
{
    const exf_architecture *a = &l->model->arch;
    float *const *weights = l->weights->w;
    int h = a->d_model;
    size_t all = (size_t)n * (size_t)h;
    w->b->rmsnorm(w->q, m->block, h, m->routed, h, weights[EXF_W_ROUTED_OUT_NORM], n, h, a->norm_eps);
    const float *shared = m->shared.p;
    if (m->shared.number == EXF_NUMBER_BF16) {
        w->b->gpu->widen(w->q, m->u, m->shared.p, all);
        shared = m->u;
    }
    w->b->rmsnorm(w->q, m->u, h, shared, h, weights[EXF_W_SHARED_OUT_NORM], n, h, a->norm_eps);
    w->b->add(w->q, m->block, m->u, all);
    w->b->rmsnorm(w->q, m->block, h, m->block, h, weights[EXF_W_BLOCK_OUT_NORM], n, h, a->norm_eps);
    if (!l->last) return;
    w->b->add(w->q, hidden, m->block, all);
    w->b->scale(w->q, hidden, all, 1, weights[EXF_W_LAYER_SCALE]);
}
