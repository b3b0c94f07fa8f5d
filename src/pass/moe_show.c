/* moe_show.c - shows a block of tokens to the lane's observer: in GPU memory as it lies, or in
 * host memory, at most EXF_MOE_BLOCK tokens of one sequence at a time; and probes: another lane's
 * rewriter on this lane's hidden states, with the corrections of rewriters.
 *
 * Most slots of a probe's routes name an expert that the token already ran: their outputs
 * are read where they are, and only the others are computed. */
#include "pass/moe_internal.h"

/* ---- observers --------------------------------------------------------------------------------- */

int exf_moe_shown_on_device(const exf_moe_layer *l, int sweep)
{
    const exf_observer *o = l->lane->observer;
    return l->space[0].b->gpu && o && o->device_block && sweep < o->device_sweeps;
}

int exf_moe_shown_on_host(const exf_moe_layer *l, int sweep)
{
    const exf_observer *o = l->lane->observer;
    return o && o->block && !exf_moe_shown_on_device(l, sweep);
}

exf_moe_block exf_moe_host_block(const exf_moe_layer *l, const exf_moe_view *v)
{
    const exf_architecture *a = &l->model->arch;
    size_t at = v->row * (size_t)a->top_k;
    return (exf_moe_block){
        .layer = l->layer, .moe_index = l->moe_index, .sequence = v->sequence, .row = v->row,
        .position = (int)(v->row - l->batch->span[v->sequence].offset), .n_tokens = v->n, .n_experts = a->n_experts,
        .top_k = a->top_k, .d_model = a->d_model, .worker = v->worker, .sweep = l->sweep, .router_ids = v->router_routes->ids + at,
        .router_weights = v->router_routes->weights + at, .topk_ids = v->routes->ids + at, .topk_weights = v->routes->weights + at,
    };
}

exf_device_block exf_moe_device_block(const exf_moe_layer *l, const exf_moe_view *v, exf_matrix outputs)
{
    const exf_architecture *a = &l->model->arch;
    size_t at = v->row * (size_t)a->top_k;
    return (exf_device_block){
        .layer = l->layer, .moe_index = l->moe_index, .sweep = l->sweep, .batch = l->batch, .row = v->row, .n_tokens = v->n,
        .n_experts = a->n_experts, .top_k = a->top_k, .d_model = a->d_model, .q = l->space[v->worker].q,
        .expert_outputs = outputs.p, .rounded = outputs.number == EXF_NUMBER_BF16, .router_ids = v->router_routes->ids_device + at,
        .router_weights = v->router_routes->weights_device + at, .topk_ids = v->routes->ids_device + at,
        .topk_weights = v->routes->weights_device + at,
    };
}

static exf_code show_on_device(const exf_moe_layer *l, const exf_moe_view *v, const exf_moe_arrays *m, const float *stream,
                               exf_err *err)
{
    const exf_observer *o = l->lane->observer;
    exf_device_block b = exf_moe_device_block(l, v, m->outputs);
    b.stream = stream;
    b.stream_width = (int)exf_moe_row_width(l);
    return o->device_block(o->self, &b, err);
}

/* Returns n elements of the call's outputs from element `first` on, as float32. */
static const float *outputs_f32(exf_workspace *w, const exf_moe_arrays *m, size_t first, size_t n)
{
    exf_matrix from = exf_matrix_at(m->outputs, first);
    if (from.number == EXF_NUMBER_F32) return from.p;
    w->b->gpu->widen(w->q, m->shown_outputs, from.p, n);
    return m->shown_outputs;
}

/* Shows tokens [at, at + v->n) of the call, which belong to one sequence. */
static exf_code show_part(const exf_moe_layer *l, const exf_moe_view *v, const exf_moe_arrays *m, const float *stream, int at,
                          exf_err *err)
{
    const exf_observer *o = l->lane->observer;
    exf_workspace *w = &l->space[v->worker];
    size_t h = (size_t)l->model->arch.d_model, k = (size_t)l->model->arch.top_k, n = (size_t)v->n * h, first = (size_t)at * h;
    float *mirror = w->mirror;
    exf_moe_block b = exf_moe_host_block(l, v);
    exf_code rc;
    EXF_TRY(exf_visible(w, m->input + first, n, &mirror, &b.moe_input, err));
    EXF_TRY(exf_visible(w, outputs_f32(w, m, first * k, n * k), n * k, &mirror, &b.expert_outputs, err));
    EXF_TRY(exf_visible(w, m->routed + first, n, &mirror, &b.routed_output, err));
    EXF_TRY(exf_visible(w, m->block + first, n, &mirror, &b.block_output, err));
    b.stream_width = (int)exf_moe_row_width(l);
    if (stream) {
        size_t width = (size_t)b.stream_width;
        EXF_TRY(exf_visible(w, stream + (size_t)at * width, (size_t)v->n * width, &mirror, &b.stream, err));
    }
    rc = o->block(o->self, &b, err);
    if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d, sequence %zu, block at position %d: ", b.layer, b.sequence, b.position);
out:
    return rc;
}

static exf_code show_on_host(const exf_moe_layer *l, const exf_moe_view *v, const exf_moe_arrays *m, const float *stream,
                             exf_err *err)
{
    const exf_span *span = l->batch->span;
    exf_moe_view part = *v;
    exf_code rc = EXF_OK;
    for (int at = 0; rc == EXF_OK && at < v->n; at += part.n) {
        part.row = v->row + (size_t)at;
        while (part.row >= span[part.sequence].offset + (size_t)span[part.sequence].n_tokens) part.sequence++;
        size_t left = span[part.sequence].offset + (size_t)span[part.sequence].n_tokens - part.row;
        part.n = v->n - at < EXF_MOE_BLOCK ? v->n - at : EXF_MOE_BLOCK;
        if ((size_t)part.n > left) part.n = (int)left;
        rc = show_part(l, &part, m, stream, at, err);
    }
    return rc;
}

exf_code exf_moe_show(const exf_moe_layer *l, const exf_moe_view *v, const exf_moe_arrays *m, const float *stream, exf_err *err)
{
    if (exf_moe_shown_on_device(l, l->sweep)) return show_on_device(l, v, m, stream, err);
    return exf_moe_shown_on_host(l, l->sweep) ? show_on_host(l, v, m, stream, err) : EXF_OK;
}

/* ---- corrections and probes -------------------------------------------------------------------- */

exf_code exf_moe_correct(const exf_moe_layer *l, const exf_rewriter *r, const exf_moe_view *v, exf_matrix outputs, float *routed,
                         exf_err *err)
{
    if (!r || !r->correct) return EXF_OK;
    if (!l->space[v->worker].b->gpu) {
        exf_moe_block b = exf_moe_host_block(l, v);
        b.expert_outputs = outputs.p;
        return r->correct(r->self, &b, routed, err);
    }
    exf_device_block b = exf_moe_device_block(l, v, outputs);
    return r->device_correct(r->self, &b, routed, err);
}

static exf_code show_probe(const exf_moe_layer *l, const exf_observer *o, const exf_moe_view *v, const exf_moe_arrays *m,
                           exf_err *err)
{
    const exf_architecture *a = &l->model->arch;
    exf_workspace *w = &l->space[v->worker];
    if (!w->b->gpu) {
        exf_moe_block b = exf_moe_host_block(l, v);
        exf_probe_block host = {b.layer,  b.moe_index, b.sequence, b.row,      b.position, v->n,
                                a->top_k, a->d_model,  v->worker,  b.topk_ids, m->routed,  m->probe_routed};
        return o->probe(o->self, &host, err);
    }
    exf_device_probe device = {l->layer, l->moe_index, l->batch, v->row, v->n, a->d_model, w->q, m->routed, m->probe_routed};
    return o->device_probe(o->self, &device, err);
}

/* Counts the slots that a probe computes; 0 on a GPU, since counting would wait for it. */
static double missing_on_host(const exf_workspace *w, const exf_moe_arrays *m, int n_slots)
{
    int missing = 0;
    for (int i = 0; !w->b->gpu && i < n_slots; i++) missing += m->probe_ids[i] >= 0;
    return missing;
}

/* Finds the outputs of the probe's slots: those that ran stay where they are, unless a correction
 * reads all of them in one array, and the others are computed into m->probe_outputs. */
static exf_code run_missing_experts(const exf_moe_layer *l, const exf_moe_probe *p, const exf_moe_view *v, const exf_moe_arrays *m,
                            exf_err *err)
{
    exf_workspace *w = &l->space[v->worker];
    const exf_architecture *a = &l->model->arch;
    const exf_rewriter *r = p->lane->rewriter;
    size_t slot = v->row * (size_t)a->top_k;
    exf_reuse_call c = {.n_tokens = v->n, .top_k = a->top_k, .d_model = a->d_model, .from = m->outputs,
                        .wanted = v->routes->ids_device + slot,
                        .ran = l->routes->ids_device + slot, .source = m->probe_source, .missing = m->probe_ids};
    if (r && r->correct) c.to = m->probe_outputs;
    w->b->reuse_outputs(w->q, &c);
    w->times.flops += 6.0 * missing_on_host(w, m, v->n * a->top_k) * a->d_model * a->d_expert;
    return exf_moe_run_experts(l, w, m, m->probe_outputs, m->probe_ids, v->n, 1, err);
}

/* m->probe_routed = the weighted sum of the probe's slots. */
static void sum_slots(const exf_moe_layer *l, const exf_moe_view *v, const exf_moe_arrays *m)
{
    exf_workspace *w = &l->space[v->worker];
    const exf_architecture *a = &l->model->arch;
    exf_moe_sum_call c = {.n_tokens = v->n, .top_k = a->top_k, .d_model = a->d_model, .outputs = m->outputs,
                          .source = m->probe_source,
                          .other = m->probe_outputs, .weights = v->routes->weights_device + v->row * (size_t)a->top_k,
                          .routed = m->probe_routed};
    w->b->moe_sum(w->q, &c);
}

exf_code exf_moe_probe_run(const exf_moe_layer *l, const exf_moe_probe *p, const exf_moe_view *v, const exf_moe_arrays *m,
                           exf_err *err)
{
    exf_moe_view view = *v;
    exf_code rc;
    if (!p->routes || !p->routes->n) return EXF_OK;
    view.routes = p->routes;
    view.router_routes = p->router_routes;
    EXF_TRY(run_missing_experts(l, p, &view, m, err));
    sum_slots(l, &view, m);
    EXF_TRY(exf_moe_correct(l, p->lane->rewriter, &view, m->probe_outputs, m->probe_routed, err));
    EXF_TRY(show_probe(l, p->lane->observer, &view, m, err));
out:
    return rc;
}
