/* expert_step.c - see expert_step.h. */
#include "forward/expert_step.h"

#include "forward/device_experts.h"
#include "forward/each.h"
#include "forward/experts.h"

static exf_code check_finite(exf_workspace *w, const float *hidden, int n_tokens, size_t width, int layer, size_t sequence, int position,
                             exf_err *err)
{
    int64_t at;
    exf_code rc = w->b->first_not_finite(w->q, hidden, (size_t)n_tokens * width, &at, err);
    if (rc != EXF_OK || at < 0) return rc;
    return exf_fail(err, EXF_NUMERIC, "layer %d: the hidden state of sequence %zu at position %d is not finite", layer, sequence,
                    position + (int)((size_t)at / width));
}

exf_moe_block exf_block_of(const exf_step *s, const exf_route_set *routes, const exf_route_set *router_routes, size_t sequence, int position, int n,
                           int worker)
{
    const exf_architecture *a = &s->p->model->arch;
    size_t row = s->p->batch->span[sequence].offset + (size_t)position, at = row * (size_t)a->top_k;
    return (exf_moe_block){
        .layer = s->layer, .moe_index = s->moe_index, .sequence = sequence, .row = row, .position = position, .n_tokens = n,
        .n_experts = a->n_experts, .top_k = a->top_k, .d_model = a->d_model, .worker = worker, .sweep = s->sweep,
        .router_ids = router_routes->ids + at, .router_weights = router_routes->weights + at, .topk_ids = routes->ids + at, .topk_weights = routes->weights + at,
    };
}

int exf_shown_device(const exf_step *s, int sweep)
{
    const exf_observer *o = s->p->lanes[s->lane].observer;
    return !s->p->b->host_memory && o && o->device_block && sweep < o->device_sweeps;
}

int exf_shown_host(const exf_step *s, int sweep)
{
    const exf_observer *o = s->p->lanes[s->lane].observer;
    return o && o->block && !exf_shown_device(s, sweep);
}

/* The outputs as they lie on the device. */
static exf_code show_device(const exf_step *s, const exf_moe_block *b, const exf_experts_space *e, exf_workspace *w, exf_err *err)
{
    const exf_observer *o = s->p->lanes[s->lane].observer;
    size_t at = b->row * (size_t)b->top_k;
    exf_device_block device = {.layer = b->layer, .moe_index = b->moe_index, .sweep = b->sweep, .batch = s->p->batch, .row = b->row, .n_tokens = b->n_tokens,
                              .n_experts = b->n_experts, .top_k = b->top_k, .d_model = b->d_model, .q = w->q, .expert_outputs = e->outputs,
                              .topk_ids = s->routes->ids_device + at, .topk_weights = s->routes->weights_device + at};
    return o->device_block(o->self, &device, err);
}

exf_code exf_show_block(const exf_step *s, size_t sequence, int position, int n, const exf_experts_space *e, exf_workspace *w, int worker,
                        exf_err *err)
{
    const exf_observer *o = s->p->lanes[s->lane].observer;
    const exf_architecture *a = &s->p->model->arch;
    if (!exf_shown_device(s, s->sweep) && !exf_shown_host(s, s->sweep)) return EXF_OK;
    size_t rows = (size_t)n * (size_t)a->d_model;
    float *mirror = w->mirror;
    exf_moe_block b = exf_block_of(s, s->routes, s->router_routes, sequence, position, n, worker);
    exf_code rc;
    if (exf_shown_device(s, s->sweep)) return show_device(s, &b, e, w, err);
    EXF_TRY(exf_visible(w, e->input, rows, &mirror, &b.moe_input, err));
    EXF_TRY(exf_visible(w, e->outputs, rows * (size_t)a->top_k, &mirror, &b.expert_outputs, err));
    EXF_TRY(exf_visible(w, e->routed, rows, &mirror, &b.routed_output, err));
    EXF_TRY(exf_visible(w, e->block, rows, &mirror, &b.block_output, err));
    rc = o->block(o->self, &b, err);
    if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d, sequence %zu, block at position %d: ", s->layer, sequence, position);
out:
    return rc;
}

exf_code exf_correct_routed(const exf_rewriter *r, exf_moe_block *b, const float *outputs, float *routed, exf_workspace *w, exf_err *err)
{
    size_t rows = (size_t)b->n_tokens * (size_t)b->d_model;
    float *mirror = w->mirror, *host = routed;
    const float *seen;
    exf_code rc;
    EXF_TRY(exf_visible(w, outputs, rows * (size_t)b->top_k, &mirror, &b->expert_outputs, err));
    if (!w->b->host_memory) {
        host = mirror;
        EXF_TRY(exf_visible(w, routed, rows, &mirror, &seen, err));
    }
    EXF_TRY(r->correct(r->self, b, host, err));
    if (!w->b->host_memory) w->b->upload(w->q, routed, host, rows * sizeof *host);
out:
    return rc;
}

/* Routed experts, the rewriter's correction, the probes, the shared experts. */
static exf_code run_experts(const exf_step *s, size_t sequence, int position, int n, const exf_experts_space *e, int worker, exf_err *err)
{
    const exf_pass *p = s->p;
    exf_workspace *w = &p->space[worker];
    const exf_architecture *a = &p->model->arch;
    const exf_rewriter *r = p->lanes[s->lane].rewriter;
    size_t at = (p->batch->span[sequence].offset + (size_t)position) * (size_t)a->top_k;
    exf_code rc = EXF_OK;
    exf_experts_run(w, n, s->routes->ids + at, a, &p->weights_now, e);
    exf_experts_combine(w, n, s->routes->weights_device + at, a, e);
    if (r && r->correct) {
        exf_moe_block b = exf_block_of(s, s->routes, s->router_routes, sequence, position, n, worker);
        EXF_TRY(exf_correct_routed(r, &b, e->outputs, e->routed, w, err));
    }
    if (s->lane == 0 && s->last) EXF_TRY(exf_probe_run(s, sequence, position, n, e, worker, err));
    exf_shared_experts_run(w, n, a, &p->weights_now, e);
out:
    return rc;
}

static exf_code run_block(const exf_step *s, size_t sequence, int position, int n, int worker, exf_err *err)
{
    const exf_pass *p = s->p;
    exf_workspace *w = &p->space[worker];
    const exf_architecture *a = &p->model->arch;
    const exf_layer_weights *lw = &p->weights_now;
    float *hidden = exf_step_rows(s, p->batch->span[sequence].offset + (size_t)position);
    double start = exf_clock(), ran;
    exf_arena arena = {w->floats, 0};
    exf_experts_space e;
    exf_code rc = EXF_OK;
    exf_carve_experts(&e, &arena, a, n, p->demand.probes);
    exf_residual_site site = exf_site_of(lw, EXF_W_FFN_MIX, EXF_W_FFN_MIX_BASE, EXF_W_FFN_MIX_SCALE);
    const float *u = exf_residual_read(w->b, w->q, a, &site, hidden, n, e.u, e.mixing);
    exf_norm_rows(w, e.input, u, lw->w[EXF_W_FFN_NORM], n, a);
    if (s->moe_index < 0)
        exf_dense_ffn_run(w, n, a, lw, &e);
    else
        EXF_TRY(run_experts(s, sequence, position, n, &e, worker, err));
    ran = exf_clock();
    w->times.experts += ran - start;
    if (s->moe_index >= 0) EXF_TRY(exf_show_block(s, sequence, position, n, &e, w, worker, err));
    w->times.observe += exf_clock() - ran;
    if (!s->last) return w->b->finish(w->q, err);
    exf_residual_update(w->b, w->q, a, hidden, e.block, n, e.mixing);
    rc = check_finite(w, hidden, n, exf_row_width(a), s->layer, sequence, position, err);
out:
    return rc;
}

static exf_code feed_forward(void *self, size_t sequence, int worker, exf_err *err)
{
    const exf_step *s = self;
    int n = s->p->batch->span[sequence].n_tokens;
    exf_code rc = EXF_OK;
    for (int at = 0; rc == EXF_OK && at < n; at += EXF_MOE_BLOCK)
        rc = run_block(s, sequence, at, n - at < EXF_MOE_BLOCK ? n - at : EXF_MOE_BLOCK, worker, err);
    return rc;
}

/* NULL in a layer that nobody looks at. */
static const exf_observer *observer_of(const exf_step *s)
{
    return s->moe_index >= 0 ? s->p->lanes[s->lane].observer : NULL;
}

exf_code exf_expert_begin(exf_step *s, exf_err *err)
{
    const exf_observer *o = observer_of(s);
    exf_code rc = EXF_OK;
    double start = exf_clock();
    if (o && o->layer_begin) rc = o->layer_begin(o->self, s->layer, s->moe_index, err);
    s->p->space[0].times.observe += exf_clock() - start;
    return rc;
}

exf_code exf_expert_group(exf_step *s, exf_err *err)
{
    return exf_device_experts_serve(s) ? exf_device_experts_run(s, err) : exf_each_sequence(s, feed_forward, err);
}

static exf_code end_sweep(exf_step *s, exf_err *err)
{
    const exf_observer *o = observer_of(s);
    exf_code rc = EXF_OK;
    if (s->last && exf_device_experts_serve(s)) EXF_TRY(exf_device_experts_check(s, err));
    double start = exf_clock();
    if (o && o->sweep_end) rc = o->sweep_end(o->self, s->layer, s->moe_index, s->sweep, err);
    s->p->space[0].times.observe += exf_clock() - start;
out:
    return rc;
}

static exf_code end_layer(exf_step *s, exf_progress *progress, exf_err *err)
{
    const exf_observer *o = observer_of(s);
    exf_code rc = EXF_OK;
    double start = exf_clock();
    if (o && o->layer_end) rc = o->layer_end(o->self, s->layer, s->moe_index, progress, err);
    s->p->space[0].times.observe += exf_clock() - start;
    return rc;
}

exf_code exf_expert_end(exf_step *s, exf_progress *progress, exf_err *err)
{
    exf_code rc = end_sweep(s, err);
    return rc == EXF_OK ? end_layer(s, progress, err) : rc;
}

exf_code exf_expert_step(exf_step *s, exf_progress *progress, exf_err *err)
{
    const exf_observer *o = observer_of(s);
    int sweeps = o && o->sweeps > 1 ? o->sweeps : 1;
    exf_code rc;
    EXF_TRY(exf_expert_begin(s, err));
    if (o && o->common_input) EXF_TRY(exf_common_input_run(s, err));
    for (s->sweep = 0; s->sweep < sweeps; s->sweep++) {
        s->last = s->sweep == sweeps - 1;
        EXF_TRY(exf_each_group(s, s->last ? EXF_HIDDEN_CHANGE : EXF_HIDDEN_READ, exf_expert_group, err));
        EXF_TRY(end_sweep(s, err));
    }
    rc = end_layer(s, progress, err);
out:
    return rc;
}
