/* experts_observe.c - shows a block of tokens to the lane's observer: in GPU memory as it lies, or in
 * host memory, at most EXF_MOE_BLOCK tokens of one sequence at a time; and probes: another lane's
 * rewriter on this lane's hidden states, with the corrections of rewriters.
 *
 * Most slots of a probe's routes name an expert that the token already ran: their outputs
 * are read where they are, and only the others are computed. */
#include "pass/experts.h"

/* ---- observers --------------------------------------------------------------------------------- */

static int shown_on_device(const exf_moe_layer *l)
{
    const exf_observer *o = exf_lane_observer(l->lane);
    return l->space[0].b->gpu && o->block && o->reads_device;
}

int exf_moe_wants_host_routes(const exf_moe_layer *l)
{
    const exf_observer *o = exf_lane_observer(l->lane);
    return (o->block && !shown_on_device(l)) || (o->common_input && !l->space[0].b->gpu);
}

/* Returns a block of the routes in host memory, or in GPU memory, without what the backend computes. */
static exf_moe_block block_of(const exf_moe_layer *l, const exf_moe_view *v, int on_device)
{
    const exf_architecture *a = &l->model->arch;
    size_t at = v->row * (size_t)a->top_k;
    exf_moe_block b = {
        .batch = l->batch, .layer = l->layer, .moe_index = l->moe_index, .sweep = l->sweep, .row = v->row, .n_tokens = v->n,
        .n_experts = a->n_experts, .top_k = a->top_k, .d_model = a->d_model, .worker = v->worker,
        .stream_width = (int)exf_row_width(&l->model->arch),
    };
    b.router_ids = (on_device ? v->router_routes->ids_device : v->router_routes->ids) + at;
    b.router_weights = (on_device ? v->router_routes->weights_device : v->router_routes->weights) + at;
    b.topk_ids = (on_device ? v->routes->ids_device : v->routes->ids) + at;
    b.topk_weights = (on_device ? v->routes->weights_device : v->routes->weights) + at;
    if (on_device) {
        b.q = l->space[v->worker].q;
    } else {
        b.sequence = v->sequence;
        b.position = (int)(v->row - l->batch->span[v->sequence].offset);
    }
    return b;
}

/* Copies what an observer reads of tokens [at, at + b->n_tokens) of the call to where it reads it, and points *b there. */
static exf_code fetch_part(exf_moe_block *b, const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m,
                           const float *stream, int at, exf_err *err)
{
    size_t h = (size_t)b->d_model, k = (size_t)b->top_k, n = (size_t)b->n_tokens * h, first = (size_t)at * h;
    size_t width = (size_t)b->stream_width, tokens = (size_t)b->n_tokens;
    float *mirror = w->mirror;
    exf_matrix wide = exf_matrix_at(m->outputs, first * k);
    const float *input, *outputs;
    exf_code rc;
    EXF_TRY(exf_visible(w, m->input + first, n, &mirror, &input, err));
    if (wide.number != EXF_NUMBER_F32) {
        w->b->gpu->widen(w->q, m->shown_outputs, wide.p, n * k);
        wide.p = m->shown_outputs;
    }
    EXF_TRY(exf_visible(w, wide.p, n * k, &mirror, &outputs, err));
    b->moe_input = input;
    b->expert_outputs = outputs;
    EXF_TRY(exf_visible(w, m->routed + first, n, &mirror, &b->routed_output, err));
    EXF_TRY(exf_visible(w, m->block + first, n, &mirror, &b->block_output, err));
    if (l->router_logits) b->router_logits = l->router_logits + b->row * (size_t)b->n_experts;
    if (stream) EXF_TRY(exf_visible(w, stream + (size_t)at * width, tokens * width, &mirror, &b->stream, err));
out:
    return rc;
}

exf_code exf_moe_show(const exf_moe_layer *l, const exf_moe_view *v, const exf_moe_arrays *m, const float *stream, exf_err *err)
{
    const exf_observer *o = exf_lane_observer(l->lane);
    exf_moe_view part = *v;
    exf_code rc = EXF_OK;
    if (shown_on_device(l)) {
        exf_moe_block b = block_of(l, v, 1);
        b.expert_outputs = m->outputs.p;
        b.rounded = m->outputs.number == EXF_NUMBER_BF16;
        b.moe_input = m->x.p;
        if (l->slot_logits) b.slot_logits = l->slot_logits + v->row * (size_t)b.top_k;
        b.stream = stream;
        return o->block(o->self, &b, err);
    }
    for (int at = 0; o->block && at < v->n; at += part.n) {
        part.row = v->row + (size_t)at;
        part.sequence = exf_sequence_of(l->batch, part.sequence, part.row);
        const exf_span *span = &l->batch->span[part.sequence];
        size_t left = span->offset + (size_t)span->n_tokens - part.row;
        part.n = v->n - at < EXF_MOE_BLOCK ? v->n - at : EXF_MOE_BLOCK;
        if ((size_t)part.n > left) part.n = (int)left;
        exf_moe_block b = block_of(l, &part, 0);
        EXF_TRY(fetch_part(&b, l, &l->space[v->worker], m, stream, at, err));
        rc = o->block(o->self, &b, err);
        if (rc == EXF_NUMERIC)
            exf_err_prefix(err, "layer %d, sequence %zu, block at position %d: ", b.layer, b.sequence, b.position);
        if (rc != EXF_OK) goto out;
    }
out:
    return rc;
}

/* ---- corrections and probes -------------------------------------------------------------------- */

exf_code exf_moe_correct(const exf_moe_layer *l, const exf_rewriter *r, const exf_moe_view *v, exf_matrix outputs, float *routed,
                         exf_err *err)
{
    if (!r || !r->correct) return EXF_OK;
    exf_moe_block b = block_of(l, v, l->space[v->worker].b->gpu != NULL);
    b.expert_outputs = outputs.p;
    b.rounded = outputs.number == EXF_NUMBER_BF16;
    return r->correct(r->self, &b, routed, err);
}

exf_code exf_moe_probe_run(const exf_moe_layer *l, const exf_moe_probe *p, const exf_moe_view *v, const exf_moe_arrays *m,
                           exf_err *err)
{
    exf_workspace *w = &l->space[v->worker];
    const exf_architecture *a = &l->model->arch;
    exf_moe_view view = *v;
    size_t slot = v->row * (size_t)a->top_k;
    int missing = 0;
    exf_code rc;
    if (!p->routes || !p->routes->n) return EXF_OK;
    view.routes = p->routes;
    view.router_routes = p->router_routes;
    const exf_rewriter *r = p->lane->rewriter;
    /* Outputs of experts that ran stay where they are, unless a correction reads all of them in one array. */
    exf_reuse_call reuse = {.n_tokens = v->n, .top_k = a->top_k, .d_model = a->d_model, .from = m->outputs,
                            .wanted = p->routes->ids_device + slot, .ran = l->routes->ids_device + slot,
                            .source = m->probe_source, .missing = m->probe_ids};
    if (r && r->correct) reuse.to = m->probe_outputs;
    w->b->reuse_outputs(w->q, &reuse);
    for (int i = 0; !w->b->gpu && i < v->n * a->top_k; i++) missing += m->probe_ids[i] >= 0; /* counting would wait for a GPU */
    w->times.flops += 6.0 * missing * a->d_model * a->d_expert;
    EXF_TRY(exf_moe_run_experts(l, w, m, m->probe_outputs, m->probe_ids, v->n, 1, err));
    exf_moe_sum_call sum = {.n_tokens = v->n, .top_k = a->top_k, .d_model = a->d_model, .outputs = m->outputs,
                            .source = m->probe_source, .other = m->probe_outputs, .weights = p->routes->weights_device + slot,
                            .routed = m->probe_routed};
    w->b->moe_sum(w->q, &sum);
    EXF_TRY(exf_moe_correct(l, r, &view, m->probe_outputs, m->probe_routed, err));
    const exf_moe_block b = block_of(l, &view, w->b->gpu != NULL);
    exf_probe_block shown = {.q = b.q, .batch = b.batch, .layer = b.layer, .moe_index = b.moe_index, .row = b.row,
                             .sequence = b.sequence, .position = b.position, .n_tokens = b.n_tokens, .top_k = b.top_k,
                             .d_model = b.d_model, .worker = b.worker, .topk_ids = b.topk_ids, .original = m->routed,
                             .rewritten = m->probe_routed};
    rc = p->lane->observer->probe(p->lane->observer->self, &shown, err);
out:
    return rc;
}
