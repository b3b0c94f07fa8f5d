/* experts_products.c - the products of a block with the weights that are loaded: routed experts, all at once or part after part,
 * shared experts, or the network of a dense layer; see experts.h. */
#include "pass/experts.h"

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

void exf_moe_run_shared(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, int n)
{
    const exf_architecture *a = &l->model->arch;
    const exf_layer_weights *lw = l->weights;
    int dense = l->moe_index < 0, width = dense ? a->d_ffn : a->d_shared;
    exf_expert_matrices network = dense ? matrices_of(lw, EXF_W_DENSE_GATE, EXF_W_DENSE_UP, EXF_W_DENSE_DOWN)
                                        : matrices_of(lw, EXF_W_SHARED_GATE, EXF_W_SHARED_UP, EXF_W_SHARED_DOWN);
    exf_expert_shape shape = exf_expert_shape_of(a, n, 1, 1, width);
    const float *gate = lw->w[EXF_W_SHARED_SWITCH];
    if (!exf_moe_has_shared(l)) return;
    w->b->zero(w->q, m->only, (size_t)n * sizeof *m->only);
    w->b->experts(w->q, m->shared, m->x, m->only, &network, &shape, m->experts);
    w->times.flops += 6.0 * n * a->d_model * width;
    if (!dense && gate) w->b->switch_weights(w->q, m->shared_weights, m->input, gate, n, a->d_model);
}
