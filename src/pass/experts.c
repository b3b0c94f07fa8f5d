/* experts.c - runs the experts of a layer: cuts the group's tokens into blocks, and computes a block; see experts.h. */
#include "pass/experts.h"

#include <omp.h>

#include "base/err.h"
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
    const exf_observer *o = l->lane->observer;
    int last = o && o->sweeps > 1 ? o->sweeps - 1 : 0;
    return exf_moe_shown_on_host(l, last) || (o && o->common_input && !o->device_common_input);
}

/* ---- finite hidden states ------------------------------------------------------------------------ */

exf_code exf_moe_not_finite(const exf_moe_layer *l, size_t row, exf_err *err)
{
    size_t sequence = exf_sequence_of(l->batch, 0, row);
    return exf_fail(err, EXF_NUMERIC, "layer %d: the %s of sequence %zu at position %d is not finite", l->layer,
                    l->recorded ? "output" : "hidden state", sequence, (int)(row - l->batch->span[sequence].offset));
}

exf_code exf_moe_not_finite_new(uint64_t **not_finite, const exf_backend *b, exf_queue *q, exf_err *err)
{
    uint64_t none = ~(uint64_t)0;
    exf_code rc = b->alloc(not_finite, 1, sizeof none, "finite check", err);
    if (rc != EXF_OK) return rc;
    b->upload(q, *not_finite, &none, sizeof none);
    return b->finish(q, err);
}

/* Looks for hidden states of n rows that are not finite: on the CPU at once, on a GPU exf_moe_check_finite() does. */
static exf_code watch_finite(const exf_moe_layer *l, exf_workspace *w, size_t row, int n, const float *rows, exf_err *err)
{
    size_t width = exf_moe_row_width(l);
    int64_t at;
    if (w->b->gpu) {
        w->b->gpu->watch_finite(w->q, l->not_finite, rows, (size_t)n * width, row * width);
        return EXF_OK;
    }
    exf_code rc = w->b->first_not_finite(w->q, rows, (size_t)n * width, &at, err);
    return rc != EXF_OK || at < 0 ? rc : exf_moe_not_finite(l, row + (size_t)at / width, err);
}

exf_code exf_moe_check_finite(const exf_moe_layer *l, exf_err *err)
{
    const exf_workspace *w = &l->space[0];
    uint64_t at;
    if (!w->b->gpu) return EXF_OK;
    exf_code rc = w->b->download(w->q, &at, l->not_finite, sizeof at, err);
    return rc != EXF_OK || at == ~(uint64_t)0 ? rc : exf_moe_not_finite(l, (size_t)at / exf_moe_row_width(l), err);
}

/* ---- experts ---------------------------------------------------------------------------- */

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
        if (l->parts.part_experts) { /* the next part overwrites the part before, whose products end first */
            EXF_TRY(w->b->finish(w->q, err));
            EXF_TRY(l->parts.next(l->parts.self, err));
        }
        exf_expert_matrices routed = exf_routed_matrices(l->weights);
        w->b->experts(w->q, outputs, m->x, ids, &routed, &shape, m->experts);
    }
out:
    return rc;
}

static int has_shared(const exf_moe_layer *l)
{
    return l->moe_index < 0 || exf_matrix_of(l->weights, EXF_W_SHARED_GATE).p != NULL;
}

/* Runs the SwiGLU network of a dense layer, or the shared experts of an MoE layer as one, into m->shared. */
static void run_shared(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, int n)
{
    const exf_architecture *a = &l->model->arch;
    const exf_layer_weights *lw = l->weights;
    int dense = l->moe_index < 0, width = dense ? a->d_ffn : a->d_shared;
    exf_expert_matrices network = dense ? matrices_of(lw, EXF_W_DENSE_GATE, EXF_W_DENSE_UP, EXF_W_DENSE_DOWN)
                                        : matrices_of(lw, EXF_W_SHARED_GATE, EXF_W_SHARED_UP, EXF_W_SHARED_DOWN);
    exf_expert_shape shape = exf_expert_shape_of(a, n, 1, 1, width);
    const float *gate = lw->w[EXF_W_SHARED_SWITCH];
    if (!has_shared(l)) return;
    w->b->zero(w->q, m->only, (size_t)n * sizeof *m->only);
    w->b->experts(w->q, m->shared, m->x, m->only, &network, &shape, m->experts);
    w->times.flops += 6.0 * n * a->d_model * width;
    if (!dense && gate) w->b->switch_weights(w->q, m->shared_weights, m->input, gate, n, a->d_model);
}

/* ---- sums ------------------------------------------------------------------------------- */

static exf_moe_sum_call sum_of(const exf_moe_layer *l, int n)
{
    return (exf_moe_sum_call){.n_tokens = n, .top_k = l->model->arch.top_k, .d_model = l->model->arch.d_model};
}

/* Returns 1 if the sum of a block adds to the hidden states: in the last sweep, where there is one residual stream. */
static int sums_hidden(const exf_moe_layer *l, const float *hidden)
{
    return hidden && l->last && l->model->arch.residual.streams == 1;
}

/* Computes the block output and, with one residual stream, adds it to the hidden states; `begun`:
 * m->routed is summed already. */
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
    if (sums_hidden(l, hidden)) c.hidden = hidden;
    if (c.hidden && w->b->gpu) c.least = l->not_finite;
    c.base = row * (size_t)c.d_model;
    w->b->moe_sum(w->q, &c);
}

/* Returns 1 if a correction or a probe uses the routed output before shared experts are added. */
static int interrupts(const exf_moe_layer *l)
{
    const exf_rewriter *r = l->lane->rewriter;
    return (r && r->correct) || (l->n_probes && l->last);
}

/* Counts the slots of n tokens that run an expert; rewriters and hash layers leave some out.  On a GPU those of rewritten routes
 * are counted there, and enter the report when the pass ends. */
static size_t slots_with_experts(const exf_moe_layer *l, exf_workspace *w, size_t row, int n)
{
    const exf_rewriter *r = l->lane->rewriter;
    size_t k = (size_t)l->model->arch.top_k, slots = (size_t)n * k, used = 0;
    if (w->b->gpu && (!r || !r->rewrite)) return slots; /* the host may not have the routes */
    if (w->b->gpu) {
        w->b->gpu->count_slots(w->q, l->slots_run, l->routes->ids_device + row * k, slots);
        return 0;
    }
    for (size_t i = 0; i < slots; i++) used += l->routes->ids[row * k + i] >= 0;
    return used;
}

/* Runs the routed experts, the rewriter's correction and the probes of other lanes. */
static exf_code run_routed(const exf_moe_layer *l, const exf_moe_view *v, const exf_moe_arrays *m, exf_err *err)
{
    exf_workspace *w = &l->space[v->worker];
    const exf_architecture *a = &l->model->arch;
    size_t slot = v->row * (size_t)a->top_k;
    exf_code rc;
    EXF_TRY(exf_moe_run_experts(l, w, m, m->outputs, l->routes->ids_device + slot, v->n, 0, err));
    w->times.flops += 6.0 * (double)slots_with_experts(l, w, v->row, v->n) * a->d_model * a->d_expert;
    if (!interrupts(l)) return EXF_OK;
    exf_moe_sum_call sum = sum_of(l, v->n);
    sum.outputs = m->outputs;
    sum.weights = l->routes->weights_device + slot;
    sum.routed = m->routed;
    w->b->moe_sum(w->q, &sum);
    EXF_TRY(exf_moe_correct(l, l->lane->rewriter, v, m->outputs, m->routed, err));
    for (size_t i = 0; l->last && i < l->n_probes; i++) EXF_TRY(exf_moe_probe_run(l, &l->probes[i], v, m, err));
out:
    return rc;
}

/* ---- a block ------------------------------------------------------------------------------ */

static double parts_waited(const exf_moe_layer *l)
{
    return l->parts.part_experts ? *l->parts.waited : 0;
}

/* Runs the block on rows [row, row + n) of the run on a worker; `sequence` is the sequence of the first row. */
static exf_code run_block(const exf_moe_layer *l, int worker, size_t sequence, size_t row, int n, exf_err *err)
{
    exf_workspace *w = &l->space[worker];
    const exf_architecture *a = &l->model->arch;
    exf_moe_view view = {l->routes, l->router_routes, sequence, row, n, worker};
    float *hidden = l->recorded ? NULL : exf_moe_rows(l, row);
    exf_arena arena = {w->floats, 0};
    exf_moe_arrays m;
    double start = exf_clock(), waited = parts_waited(l), router = w->times.router, computed, shown;
    exf_code rc = EXF_OK;
    exf_moe_carve(&m, &arena, w->b, w->compute, a, n, &l->needs);
    if (l->recorded) EXF_TRY(exf_moe_recorded_input(l, w, &m, row, n, err));
    exf_stage_begin(w->clock, w->q);
    if (!l->recorded) exf_moe_norm_input(l, w, &m, hidden, n);
    if (l->moe_index >= 0) EXF_TRY(run_routed(l, &view, &m, err));
    run_shared(l, w, &m, n);
    sum_block(l, w, &m, hidden, row, n, l->moe_index >= 0 && interrupts(l));
    exf_stage_end(w->clock, w->q, &w->times.experts, l->work, n);
    if (w->clock) w->times.experts -= parts_waited(l) - waited; /* the GPU waited for weights */
    EXF_TRY(exf_moe_wait_if_timed(l, w, err));
    if (hidden && l->last && a->residual.streams > 1) exf_residual_update(w->b, w->q, a, hidden, m.block, n, m.mixing);
    computed = exf_clock();
    exf_stage_begin(w->clock, w->q);
    if (l->moe_index >= 0) EXF_TRY(exf_moe_show(l, &view, &m, l->last ? hidden : NULL, err));
    exf_stage_end(w->clock, w->q, &w->times.observe, l->work, 0);
    EXF_TRY(exf_moe_wait_if_timed(l, w, err));
    shown = exf_clock();
    if (l->last && !(w->b->gpu && sums_hidden(l, hidden))) EXF_TRY(watch_finite(l, w, row, n, hidden ? hidden : m.block, err));
    exf_add_time(w, &w->times.observe, shown - computed);
    exf_add_time(w, &w->times.experts,
                 computed - start - (parts_waited(l) - waited) - (w->times.router - router) + (exf_clock() - shown));
out:
    return rc;
}

/* ---- a group's tokens, cut into blocks -------------------------------------------------------------- */

exf_code exf_moe_each_sequence(exf_moe_layer *l, exf_sequence_fn fn, exf_err *err)
{
    exf_loop loop = EXF_LOOP;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(l->group.n, l->n_workers))
    for (size_t i = 0; i < l->group.n; i++) {
        exf_err e;
        if (exf_loop_takes(&loop, i) && fn(l, l->group.first + i, omp_get_thread_num(), &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    return exf_loop_end(&loop, err);
}

/* Runs the block of the sequence that begins at position `at`. */
static exf_code run_block_at(const exf_moe_layer *l, size_t sequence, int at, int worker, exf_err *err)
{
    const exf_span *span = &l->batch->span[sequence];
    int left = span->n_tokens - at, n = left < EXF_MOE_BLOCK ? left : EXF_MOE_BLOCK;
    exf_code rc = run_block(l, worker, sequence, span->offset + (size_t)at, n, err);
    exf_progress_add(n);
    return rc;
}

static exf_code run_sequence(exf_moe_layer *l, size_t sequence, int worker, exf_err *err)
{
    int n = l->batch->span[sequence].n_tokens;
    exf_code rc = EXF_OK;
    for (int at = 0; rc == EXF_OK && at < n; at += EXF_MOE_BLOCK) rc = run_block_at(l, sequence, at, worker, err);
    return rc;
}

/* Runs the i-th block; blocks are numbered over all sequences. */
static exf_code run_numbered_block(const exf_moe_layer *l, size_t i, int worker, exf_err *err)
{
    size_t sequence = 0, blocks;
    while (i >= (blocks = exf_moe_blocks_of(&l->batch->span[sequence]))) {
        i -= blocks;
        sequence++;
    }
    return run_block_at(l, sequence, (int)i * EXF_MOE_BLOCK, worker, err);
}

/* Runs the blocks of recorded rows, which need no order. */
static exf_code run_numbered_blocks(const exf_moe_layer *l, exf_err *err)
{
    size_t n = exf_moe_blocks(l->batch);
    exf_loop loop = EXF_LOOP;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(n, l->n_workers))
    for (size_t i = 0; i < n; i++) {
        exf_err e;
        if (exf_loop_takes(&loop, i) && run_numbered_block(l, i, omp_get_thread_num(), &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    return exf_loop_end(&loop, err);
}

exf_code exf_moe_run(exf_moe_layer *l, exf_err *err)
{
    size_t sequence = l->group.first, end = l->group.row + l->group.n_rows, last;
    exf_code rc = EXF_OK;
    if (!l->space[0].b->gpu)
        return l->recorded ? run_numbered_blocks(l, err) : exf_moe_each_sequence(l, run_sequence, err);
    for (size_t row = l->group.row; row < end; row = last) {
        EXF_TRY(exf_stop_check(err));
        sequence = exf_sequence_of(l->batch, sequence, row);
        last = exf_moe_call_end(l->batch, sequence, row, end, (size_t)l->block_tokens);
        EXF_TRY(run_block(l, 0, sequence, row, (int)(last - row), err));
    }
out:
    return rc;
}
