/* experts.c - runs the experts of a layer: cuts the group's tokens into blocks, and computes a block from its normed hidden
 * states; see experts.h. */
#include "pass/experts.h"

#include "base/err.h"
#include "base/log.h"
#include "base/parallel.h"

#include <omp.h>
#include <string.h>

/* ---- sums ------------------------------------------------------------------------------- */

static exf_moe_sum_call sum_of(const exf_moe_layer *l, int n)
{
    return (exf_moe_sum_call){.n_tokens = n, .top_k = l->model->arch.top_k, .d_model = l->model->arch.d_model};
}

/* Returns 1 if outputs of slots without an expert are neither cleared nor read: rewriters leave many out, and nothing but the sum
 * reads outputs. */
static int skips_slots(const exf_moe_layer *l)
{
    const exf_rewriter *r = l->lane->rewriter;
    return r && r->rewrite && !r->correct && !exf_lane_observer(l->lane)->block;
}

/* Returns 1 if the sum of a block adds to the hidden states: in the last sweep, where there is one residual stream. */
static int sums_hidden(const exf_moe_layer *l)
{
    return l->last && l->model->arch.residual.streams == 1 && !l->model->arch.residual.normed;
}

/* Computes the block output and, with one residual stream, adds it to the hidden states; `begun`:
 * m->routed is summed already. */
static void sum_block(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, float *hidden, size_t row, int n,
                      int begun)
{
    exf_moe_sum_call c = sum_of(l, n);
    if (l->model->arch.residual.normed) {
        exf_moe_sum_normed(l, w, m, hidden, n);
        return;
    }
    if (begun) c.start = m->routed;
    if (l->moe_index >= 0 && !begun) {
        c.outputs = m->outputs;
        c.ids = skips_slots(l) ? l->routes->ids_device + row * (size_t)c.top_k : NULL;
        c.weights = l->routes->weights_device + row * (size_t)c.top_k;
        c.routed = m->routed;
    }
    if (exf_moe_has_shared(l)) {
        c.shared = m->shared;
        c.shared_weights = l->moe_index >= 0 && l->weights->w[EXF_W_SHARED_SWITCH] ? m->shared_weights : NULL;
    }
    c.block = m->block;
    if (sums_hidden(l)) c.hidden = hidden;
    if (c.hidden && w->b->gpu) c.least = l->not_finite;
    c.base = row * (size_t)c.d_model;
    w->b->moe_sum(w->q, &c);
}

/* Returns 1 if a correction, a probe or a norm uses the routed output before shared experts are added. */
static int needs_routed_sum_first(const exf_moe_layer *l)
{
    const exf_rewriter *r = l->lane->rewriter;
    return (r && r->correct) || (l->n_probes && l->last) || l->model->arch.residual.normed;
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
    EXF_TRY(exf_moe_run_experts(l, w, m, m->outputs, l->routes->ids_device + slot, v->n, skips_slots(l), err));
    w->times.flops += 6.0 * (double)slots_with_experts(l, w, v->row, v->n) * a->d_model * a->d_expert;
    if (!needs_routed_sum_first(l)) return EXF_OK;
    exf_moe_sum_call sum = sum_of(l, v->n);
    sum.outputs = m->outputs;
    sum.ids = skips_slots(l) ? l->routes->ids_device + slot : NULL;
    sum.weights = l->routes->weights_device + slot;
    sum.routed = m->routed;
    w->b->moe_sum(w->q, &sum);
    EXF_TRY(exf_moe_correct(l, l->lane->rewriter, v, m->outputs, m->routed, err));
    for (size_t i = 0; l->last && i < l->n_probes; i++) EXF_TRY(exf_moe_probe_run(l, &l->probes[i], v, m, err));
out:
    return rc;
}

/* ---- the input ----------------------------------------------------------------- */

/* Norms the block's hidden states, from `row` of the run on, into m->x and m->input. */
static void norm_input(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, const float *hidden, size_t row, int n)
{
    const exf_architecture *a = &l->model->arch;
    float *mixing = exf_moe_mixing(l, row);
    exf_residual_site site = exf_residual_site_of(l->weights, EXF_W_FFN_MIX, EXF_W_FFN_MIX_BASE, EXF_W_FFN_MIX_SCALE);
    const float *norm = l->weights->w[EXF_W_FFN_NORM], *u;
    if (l->moe_index >= 0) /* the router has read them */
        u = exf_residual_read_again(w->b, w->q, a, &site, hidden, n, m->u, mixing);
    else
        u = exf_residual_read(w->b, w->q, a, &site, hidden, n, m->u, mixing);
    if (m->x.number == EXF_NUMBER_BF16)
        w->b->gpu->rmsnorm_rounded(w->q, exf_moe_data(m->x), m->input, u, norm, n, a->d_model, a->norm_eps);
    else
        w->b->rmsnorm(w->q, m->input, a->d_model, u, a->d_model, norm, n, a->d_model, a->norm_eps);
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
    float *hidden = exf_moe_rows(l, row);
    exf_arena arena = {w->floats, 0};
    exf_moe_arrays m;
    size_t width = exf_row_width(a);
    double start = exf_clock(), waited = parts_waited(l), computed, shown;
    exf_code rc = EXF_OK;
    exf_moe_carve(&m, &arena, w->b, w->compute, a, n, &l->needs);
    exf_stage_begin(w->clock, w->q);
    norm_input(l, w, &m, hidden, row, n);
    if (l->moe_index >= 0) EXF_TRY(run_routed(l, &view, &m, err));
    exf_moe_run_shared(l, w, &m, hidden, n);
    sum_block(l, w, &m, hidden, row, n, l->moe_index >= 0 && needs_routed_sum_first(l));
    exf_stage_end(w->clock, w->q, &w->times.experts, l->work, n);
    if (w->clock) w->times.experts -= parts_waited(l) - waited; /* the GPU waited for weights */
    EXF_TRY(exf_moe_wait_if_timed(l, w, err));
    if (l->last && a->residual.streams > 1)
        exf_residual_update(w->b, w->q, a, hidden, m.block, n, exf_moe_mixing(l, row));
    computed = exf_clock();
    exf_stage_begin(w->clock, w->q);
    if (l->moe_index >= 0) EXF_TRY(exf_moe_show(l, &view, &m, l->last ? hidden : NULL, err));
    exf_stage_end(w->clock, w->q, &w->times.observe, l->work, 0);
    EXF_TRY(exf_moe_wait_if_timed(l, w, err));
    shown = exf_clock();
    if (l->last && w->b->gpu && !sums_hidden(l)) { /* exf_moe_check_finite() looks at what is found */
        w->b->gpu->watch_finite(w->q, l->not_finite, hidden, (size_t)n * width, row * width);
    } else if (l->last && !w->b->gpu) {
        int64_t at;
        EXF_TRY(w->b->first_not_finite(w->q, hidden, (size_t)n * width, &at, err));
        if (at >= 0) EXF_TRY(exf_moe_not_finite(l, row + (size_t)at / width, err));
    }
    exf_add_time(w, &w->times.observe, shown - computed);
    exf_add_time(w, &w->times.experts, computed - start - (parts_waited(l) - waited) + (exf_clock() - shown));
out:
    return rc;
}

/* ---- a group's tokens, cut into blocks -------------------------------------------------------------- */

exf_code exf_moe_run(exf_moe_layer *l, exf_err *err)
{
    size_t first = l->group.first, sequence = first, end = l->group.row + l->group.n_rows, last;
    exf_loop loop = EXF_LOOP;
    exf_code rc = EXF_OK;
    for (size_t row = l->group.row; l->space[0].b->gpu && row < end; row = last) {
        EXF_TRY(exf_stop_check(err));
        sequence = exf_sequence_of(l->batch, sequence, row);
        last = exf_moe_call_end(l->batch, sequence, row, end, (size_t)l->block_tokens);
        EXF_TRY(run_block(l, 0, sequence, row, (int)(last - row), err));
    }
    if (l->space[0].b->gpu) return EXF_OK;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(l->group.n, l->n_workers))
    for (size_t i = 0; i < l->group.n; i++) {
        const exf_span *span = &l->batch->span[first + i];
        exf_code ran = EXF_OK;
        exf_err e;
        if (!exf_loop_takes(&loop, i)) continue;
        for (int at = 0, n; ran == EXF_OK && at < span->n_tokens; at += n) {
            n = span->n_tokens - at < EXF_MOE_BLOCK ? span->n_tokens - at : EXF_MOE_BLOCK;
            ran = run_block(l, omp_get_thread_num(), first + i, span->offset + (size_t)at, n, &e);
            exf_progress_add(n);
        }
        if (ran != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    rc = exf_loop_end(&loop, err);
out:
    return rc;
}
