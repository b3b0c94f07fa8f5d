/* moe_layer.c - see moe_layer.h. */
#include "pass/moe_internal.h"
#include "pass/moe_layer.h"

#include "base/log.h"

size_t exf_moe_row_width(const exf_moe_layer *l)
{
    return l->recorded ? (size_t)l->model->arch.d_model : exf_row_width(&l->model->arch);
}

float *exf_moe_rows(const exf_moe_layer *l, size_t row)
{
    return l->rows + (row - l->group.row) * exf_row_width(&l->model->arch);
}

exf_code exf_moe_wait_if_timed(const exf_moe_layer *l, exf_workspace *w, exf_err *err)
{
    return l->timed ? w->b->finish(w->q, err) : EXF_OK;
}

int exf_moe_wants_host_routes(const exf_moe_layer *l)
{
    const exf_rewriter *r = l->lane->rewriter;
    const exf_observer *o = l->lane->observer;
    int last = o && o->sweeps > 1 ? o->sweeps - 1 : 0;
    return (r && r->rewrite) || exf_moe_shown_on_host(l, last) || (o && o->common_input && !o->device_common_input);
}

/* ---- input ---------------------------------------------------------------------------- */

/* Norms the block's hidden states into m->x and m->input. */
static void norm_hidden(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, const float *hidden, int n)
{
    const exf_architecture *a = &l->model->arch;
    exf_residual_site site = exf_residual_site_of(l->weights, EXF_W_FFN_MIX, EXF_W_FFN_MIX_BASE, EXF_W_FFN_MIX_SCALE);
    const float *u = exf_residual_read(w->b, w->q, a, &site, hidden, n, m->u, m->mixing), *norm = l->weights->w[EXF_W_FFN_NORM];
    if (m->x.number == EXF_NUMBER_BF16)
        w->b->gpu->rmsnorm_rounded(w->q, exf_moe_data(m->x), m->input, u, norm, n, a->d_model, a->norm_eps);
    else
        w->b->rmsnorm(w->q, m->input, a->d_model, u, a->d_model, norm, n, a->d_model, a->norm_eps);
}

/* ---- experts ---------------------------------------------------------------------------- */

static exf_expert_matrices matrices_of(const exf_layer_weights *lw, exf_role gate, exf_role up, exf_role down)
{
    return (exf_expert_matrices){exf_matrix_of(lw, gate), exf_matrix_of(lw, up), exf_matrix_of(lw, down)};
}

/* Loads the next part of the layer's experts over the part before, whose products it waits for. */
static exf_code next_part(const exf_moe_layer *l, exf_workspace *w, exf_err *err)
{
    exf_code rc = w->b->finish(w->q, err);
    return rc == EXF_OK ? l->parts.next(l->parts.self, err) : rc;
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
        if (l->parts.part_experts) EXF_TRY(next_part(l, w, err));
        exf_expert_matrices routed = matrices_of(l->weights, EXF_W_EXPERT_GATE, EXF_W_EXPERT_UP, EXF_W_EXPERT_DOWN);
        w->b->experts(w->q, outputs, m->x, ids, &routed, &shape, m->experts);
    }
out:
    return rc;
}

/* Runs the only SwiGLU network of `width` into m->shared: a shared expert, or a dense layer. */
static void run_only(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, const exf_expert_matrices *matrices, int n,
                     int width)
{
    const exf_architecture *a = &l->model->arch;
    exf_expert_shape shape = exf_expert_shape_of(a, n, 1, 1, width);
    w->b->zero(w->q, m->only, (size_t)n * sizeof *m->only);
    w->b->experts(w->q, m->shared, m->x, m->only, matrices, &shape, m->experts);
    w->times.flops += 6.0 * n * a->d_model * width;
}

static int has_shared(const exf_moe_layer *l)
{
    return l->moe_index < 0 || exf_matrix_of(l->weights, EXF_W_SHARED_GATE).p != NULL;
}

static void run_shared(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, int n)
{
    const exf_architecture *a = &l->model->arch;
    const float *gate = l->weights->w[EXF_W_SHARED_SWITCH];
    exf_expert_matrices dense = matrices_of(l->weights, EXF_W_DENSE_GATE, EXF_W_DENSE_UP, EXF_W_DENSE_DOWN);
    exf_expert_matrices shared = matrices_of(l->weights, EXF_W_SHARED_GATE, EXF_W_SHARED_UP, EXF_W_SHARED_DOWN);
    if (l->moe_index < 0) {
        run_only(l, w, m, &dense, n, a->d_ffn);
        return;
    }
    if (!has_shared(l)) return;
    run_only(l, w, m, &shared, n, a->d_shared);
    if (gate) w->b->switch_weights(w->q, m->shared_weights, m->input, gate, n, a->d_model);
}

/* ---- sums ------------------------------------------------------------------------------- */

static exf_moe_sum_call sum_of(const exf_moe_layer *l, int n)
{
    return (exf_moe_sum_call){.n_tokens = n, .top_k = l->model->arch.top_k, .d_model = l->model->arch.d_model};
}

static void routed_sum(const exf_moe_layer *l, exf_workspace *w, float *routed, exf_matrix outputs, const float *weights, int n)
{
    exf_moe_sum_call c = sum_of(l, n);
    c.outputs = outputs;
    c.weights = weights;
    c.routed = routed;
    w->b->moe_sum(w->q, &c);
}

/* Computes the block output and, with one residual stream, adds it to the hidden states; `begun`:
 * routed is summed already. */
static void sum_block(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, float *hidden, size_t row, int n,
                      int begun)
{
    exf_moe_sum_call c = sum_of(l, n);
    if (begun) c.start = m->routed;
    if (l->moe_index >= 0 && !begun) {
        c.outputs = m->outputs;
        c.weights = l->routes->weights_device + row * (size_t)c.top_k;
        c.routed = m->routed;
    }
    if (has_shared(l)) {
        c.shared = m->shared;
        c.shared_weights = l->moe_index >= 0 && l->weights->w[EXF_W_SHARED_SWITCH] ? m->shared_weights : NULL;
    }
    c.block = m->block;
    if (hidden && l->last && l->model->arch.residual.streams == 1) c.hidden = hidden;
    w->b->moe_sum(w->q, &c);
}

/* Returns 1 if a correction or a probe uses the routed output before shared experts are added. */
static int interrupts(const exf_moe_layer *l)
{
    const exf_rewriter *r = l->lane->rewriter;
    return (r && r->correct) || (l->n_probes && l->last);
}

/* Counts the slots of n tokens that run an expert; rewriters and hash layers leave some out. */
static size_t slots_with_experts(const exf_moe_layer *l, size_t row, int n)
{
    const exf_rewriter *r = l->lane->rewriter;
    size_t k = (size_t)l->model->arch.top_k, slots = (size_t)n * k, used = 0;
    if (l->space->b->gpu && (!r || !r->rewrite)) return slots; /* the host may not have the routes */
    for (size_t i = 0; i < slots; i++) used += l->routes->ids[row * k + i] >= 0;
    return used;
}

/* Runs the routed experts, the rewriter's correction and the probes of other lanes. */
static exf_code run_routed(const exf_moe_layer *l, int worker, const exf_moe_arrays *m, size_t sequence, size_t row, int n,
                           exf_err *err)
{
    exf_workspace *w = &l->space[worker];
    const exf_architecture *a = &l->model->arch;
    size_t slot = row * (size_t)a->top_k;
    exf_code rc;
    EXF_TRY(exf_moe_run_experts(l, w, m, m->outputs, l->routes->ids_device + slot, n, 0, err));
    w->times.flops += 6.0 * (double)slots_with_experts(l, row, n) * a->d_model * a->d_expert;
    if (!interrupts(l)) return EXF_OK;
    routed_sum(l, w, m->routed, m->outputs, l->routes->weights_device + slot, n);
    exf_moe_view view = {l->routes, l->router_routes, sequence, row, n, worker};
    EXF_TRY(exf_moe_correct(l, l->lane->rewriter, &view, m->outputs, m->routed, err));
    for (size_t i = 0; l->last && i < l->n_probes; i++) EXF_TRY(exf_moe_probe_run(l, &l->probes[i], &view, m, err));
out:
    return rc;
}

/* ---- a block ------------------------------------------------------------------------------ */

static double parts_waited(const exf_moe_layer *l)
{
    return l->parts.part_experts ? *l->parts.waited : 0;
}

static exf_code compute(const exf_moe_layer *l, int worker, exf_moe_arrays *m, size_t sequence, size_t row, int n, float *hidden,
                        exf_err *err)
{
    exf_workspace *w = &l->space[worker];
    double waited = parts_waited(l);
    exf_code rc = EXF_OK;
    if (l->recorded) EXF_TRY(exf_moe_recorded_input(l, w, m, row, n, err));
    exf_stage_begin(w->clock, w->q);
    if (!l->recorded) norm_hidden(l, w, m, hidden, n);
    if (l->moe_index >= 0) EXF_TRY(run_routed(l, worker, m, sequence, row, n, err));
    run_shared(l, w, m, n);
    sum_block(l, w, m, hidden, row, n, l->moe_index >= 0 && interrupts(l));
    exf_stage_end(w->clock, w->q, &w->times.experts, l->work, n);
    if (w->clock) w->times.experts -= parts_waited(l) - waited; /* the GPU waited for weights */
    rc = exf_moe_wait_if_timed(l, w, err);
out:
    return rc;
}

exf_code exf_moe_block_run(const exf_moe_layer *l, int worker, size_t sequence, size_t row, int n, exf_err *err)
{
    exf_workspace *w = &l->space[worker];
    const exf_architecture *a = &l->model->arch;
    float *hidden = l->recorded ? NULL : exf_moe_rows(l, row);
    exf_arena arena = {w->floats, 0};
    exf_moe_arrays m;
    double start = exf_clock(), waited = parts_waited(l), router = w->times.router, computed, shown;
    exf_code rc;
    exf_moe_carve(&m, &arena, w->b, w->compute, a, n, &l->needs);
    EXF_TRY(compute(l, worker, &m, sequence, row, n, hidden, err));
    if (hidden && l->last && a->residual.streams > 1) exf_residual_update(w->b, w->q, a, hidden, m.block, n, m.mixing);
    computed = exf_clock();
    exf_moe_view view = {l->routes, l->router_routes, sequence, row, n, worker};
    exf_stage_begin(w->clock, w->q);
    if (l->moe_index >= 0) EXF_TRY(exf_moe_show(l, &view, &m, l->last ? hidden : NULL, err));
    exf_stage_end(w->clock, w->q, &w->times.observe, l->work, 0);
    EXF_TRY(exf_moe_wait_if_timed(l, w, err));
    shown = exf_clock();
    if (l->last) EXF_TRY(l->engine->watch(l, w, &view, hidden ? hidden : m.block, err));
    exf_add_time(w, &w->times.observe, shown - computed);
    exf_add_time(w, &w->times.experts,
                 computed - start - (parts_waited(l) - waited) - (w->times.router - router) + (exf_clock() - shown));
out:
    return rc;
}

/* ---- sequences and blocks ---------------------------------------------------------------------- */

size_t exf_moe_blocks_of(const exf_span *span)
{
    return ((size_t)span->n_tokens + EXF_MOE_BLOCK - 1) / EXF_MOE_BLOCK;
}

size_t exf_moe_blocks(const exf_batch *batch)
{
    size_t n = 0;
    for (size_t i = 0; i < batch->n_sequences; i++) n += exf_moe_blocks_of(&batch->span[i]);
    return n;
}

size_t exf_moe_call_end(const exf_batch *batch, size_t sequence, size_t row, size_t end, size_t most)
{
    size_t last = end - row <= most ? end : row + most;
    if (last == end || most < EXF_MOE_BLOCK) return last;
    while (last >= batch->span[sequence].offset + (size_t)batch->span[sequence].n_tokens) sequence++;
    size_t first = batch->span[sequence].offset, between = first + (last - first) / EXF_MOE_BLOCK * EXF_MOE_BLOCK;
    return between > row ? between : last;
}

typedef struct {
    exf_moe_layer *layer;
    exf_parallel_fn fn;
} group_call;

static exf_code run_one(void *self, size_t i, int worker, exf_err *err)
{
    const group_call *g = self;
    return g->fn(g->layer, g->layer->group.first + i, worker, err);
}

exf_code exf_moe_each_sequence(exf_moe_layer *l, exf_parallel_fn fn, exf_err *err)
{
    group_call g = {l, fn};
    return exf_parallel_for(l->group.n, l->n_workers, run_one, &g, err);
}

exf_code exf_moe_not_finite(const exf_moe_layer *l, size_t row, exf_err *err)
{
    size_t sequence = 0;
    while (row >= l->batch->span[sequence].offset + (size_t)l->batch->span[sequence].n_tokens) sequence++;
    return exf_fail(err, EXF_NUMERIC, "layer %d: the %s of sequence %zu at position %d is not finite", l->layer,
                    l->recorded ? "output" : "hidden state", sequence, (int)(row - l->batch->span[sequence].offset));
}
