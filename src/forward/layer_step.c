/* layer_step.c - see layer_step.h. */
#include "forward/layer_step.h"

#include "base/stop.h"
#include "forward/device_experts.h"
#include "forward/each.h"
#include "forward/expert_step.h"
#include "mixers/mixer.h"
#include "forward/routing.h"

#include <math.h>

size_t exf_row_width(const exf_architecture *a)
{
    return (size_t)a->residual.streams * (size_t)a->d_model;
}

void exf_norm_rows(exf_workspace *w, float *out, const float *rows, const float *weight, int n, const exf_architecture *a)
{
    w->b->rmsnorm(w->q, out, a->d_model, rows, a->d_model, weight, n, a->d_model, a->norm_eps);
}

exf_residual_site exf_site_of(const exf_layer_weights *lw, exf_role fn, exf_role base, exf_role scale)
{
    return (exf_residual_site){lw->w[fn], lw->w[base], lw->w[scale]};
}

/* ---- sweep 1: h <- residual(h, mixer(norm(h))); routes = router(norm(h)) --- */

/* The mixer's input in the type that its products read. */
static void norm_input(exf_mixer_call *call, exf_workspace *w, const exf_mixer_space *space, const float *u, const float *weight)
{
    if (w->compute == EXF_COMPUTE_BF16) {
        uint16_t *rounded = (uint16_t *)(void *)space->normed;
        w->b->rmsnorm_rounded(w->q, rounded, NULL, u, weight, call->n_tokens, call->a->d_model, call->a->norm_eps);
        call->input16 = rounded;
    } else {
        exf_norm_rows(w, space->normed, u, weight, call->n_tokens, call->a);
        call->input = space->normed;
    }
}

static void mix(const exf_step *s, exf_workspace *w, float *hidden, int n, const exf_mixer_space *space, exf_arena *arena)
{
    const exf_pass *p = s->p;
    const exf_architecture *a = &p->model->arch;
    const exf_layer_weights *lw = &p->weights_now;
    exf_residual_site site = exf_site_of(lw, EXF_W_MIXER_MIX, EXF_W_MIXER_MIX_BASE, EXF_W_MIXER_MIX_SCALE);
    const float *u = exf_residual_read(w->b, w->q, a, &site, hidden, n, space->u, space->mixing);
    exf_mixer_call call = {.out = space->mixed, .n_tokens = n, .layer = s->layer, .a = a, .w = lw->w, .w16 = lw->w16,
                           .rope_tables = &p->rope_tables, .arena = arena, .b = w->b, .q = w->q};
    norm_input(&call, w, space, u, lw->w[EXF_W_MIXER_NORM]);
    if (w->compute == EXF_COMPUTE_BF16 && a->residual.streams == 1) { /* the last product adds to the hidden states itself */
        call.out = hidden;
        call.beta = 1;
    }
    exf_mixer_of(a->mixer[s->layer])->run(&call);
    if (call.beta == 0) exf_residual_update(w->b, w->q, a, hidden, space->mixed, n, space->mixing);
    w->times.flops += exf_mixer_of(a->mixer[s->layer])->flops(a, s->layer, n);
}

static void route(const exf_step *s, exf_workspace *w, const float *hidden, const exf_span *span, const exf_mixer_space *space)
{
    const exf_pass *p = s->p;
    const exf_architecture *a = &p->model->arch;
    const exf_layer_weights *lw = &p->weights_now;
    int n = span->n_tokens;
    exf_residual_site site = exf_site_of(lw, EXF_W_FFN_MIX, EXF_W_FFN_MIX_BASE, EXF_W_FFN_MIX_SCALE);
    const float *u = exf_residual_read(w->b, w->q, a, &site, hidden, n, space->u, space->mixing);
    exf_matrix x = exf_f32(space->normed);
    if (lw->router_split) {
        x = exf_bf16((const uint16_t *)(const void *)space->normed);
        w->b->rmsnorm_split(w->q, (uint16_t *)(void *)space->normed, u, lw->w[EXF_W_FFN_NORM], n, a->d_model, a->norm_eps);
    } else {
        exf_norm_rows(w, space->normed, u, lw->w[EXF_W_FFN_NORM], n, a);
    }
    size_t at = span->offset * (size_t)a->top_k;
    exf_routing_run(w, s->routes->ids_device + at, s->routes->weights_device + at, x, p->tokens_device + span->offset, n, a, lw, s->mask,
                    space->logits);
    w->times.flops += 2.0 * n * a->d_model * a->n_experts;
}

exf_code exf_finish_queues(const exf_pass *p, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && i < p->n_spaces; i++) rc = p->b->finish(p->space[i].q, err);
    return rc;
}

exf_code exf_wait_if_timed(const exf_step *s, exf_workspace *w, exf_err *err)
{
    return s->p->timed ? w->b->finish(w->q, err) : EXF_OK;
}

static void sweep_sequence(const exf_step *s, exf_workspace *w, size_t sequence, int mixes, int routes)
{
    const exf_architecture *a = &s->p->model->arch;
    const exf_span *span = &s->p->batch->span[sequence];
    float *hidden = exf_step_rows(s, span->offset);
    exf_arena arena = {w->floats, 0};
    exf_mixer_space space;
    double start = exf_clock();
    exf_carve_mixer(&space, &arena, a, span->n_tokens);
    if (mixes) mix(s, w, hidden, span->n_tokens, &space, &arena);
    double mixed = exf_clock();
    if (routes) route(s, w, hidden, span, &space);
    if (s->p->timed) return; /* by timed_turns */
    w->times.mixer += mixed - start;
    w->times.router += exf_clock() - mixed;
}

static exf_code mix_only(void *self, size_t sequence, int worker, exf_err *err)
{
    const exf_step *s = self;
    (void)err;
    sweep_sequence(s, &s->p->space[worker], sequence, 1, 0);
    return EXF_OK;
}

static exf_code route_only(void *self, size_t sequence, int worker, exf_err *err)
{
    const exf_step *s = self;
    (void)err;
    sweep_sequence(s, &s->p->space[worker], sequence, 0, 1);
    return EXF_OK;
}

static exf_code mix_and_route(void *self, size_t sequence, int worker, exf_err *err)
{
    const exf_step *s = self;
    (void)err;
    sweep_sequence(s, &s->p->space[worker], sequence, 1, s->moe_index >= 0);
    return EXF_OK;
}

/* The group's sequences in turns on the device's queues, so that one's small kernels run
 * beside another's; each has its own arrays, so the turns change nothing else. */
static exf_code take_turns(exf_step *s, exf_each_fn fn, exf_err *err)
{
    const exf_pass *p = s->p;
    exf_code rc = EXF_OK;
    for (int i = 1; i < p->n_spaces; i++) p->b->wait_for(p->space[i].q, p->space[0].q); /* which brought what the sweep reads */
    for (size_t i = 0; i < s->group.n; i++) {
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(fn(s, s->group.first + i, (int)(i % (size_t)p->n_spaces), err));
    }
    for (int i = 1; i < p->n_spaces; i++) p->b->wait_for(p->space[0].q, p->space[i].q);
out:
    return rc;
}

/* A device's queues run on by themselves: how long a part took is known only where all
 * sequences do it before the next part begins. */
static exf_code timed_turns(exf_step *s, exf_each_fn fn, double *seconds, exf_err *err)
{
    double start = exf_clock();
    exf_code rc;
    EXF_TRY(take_turns(s, fn, err));
    EXF_TRY(exf_finish_queues(s->p, err));
    *seconds += exf_clock() - start;
out:
    return rc;
}

static exf_code sweep(exf_step *s, exf_each_fn fn, exf_err *err)
{
    exf_pass *p = s->p;
    exf_forward_report *times = &p->space[0].times;
    exf_code rc;
    if (p->b->host_memory) return exf_each_sequence(s, fn, err);
    if (!p->timed) return take_turns(s, fn, err);
    if (fn == mix_and_route) EXF_TRY(timed_turns(s, mix_only, &times->mixer, err));
    rc = s->moe_index >= 0 ? timed_turns(s, route_only, &times->router, err) : EXF_OK;
out:
    return rc;
}

static exf_code mix_group(exf_step *s, exf_err *err)
{
    return sweep(s, mix_and_route, err);
}

static exf_code route_group(exf_step *s, exf_err *err)
{
    return sweep(s, route_only, err);
}

/* ---- rewriting --------------------------------------------------------------- */

/* 0 where an expert survives, -infinity where not; and the router's bias plus that.
 * A hash layer has no choice. */
static exf_code load_mask(exf_pass *p, const exf_rewriter *r, int moe_index, const float **mask, exf_err *err)
{
    size_t n = (size_t)p->model->arch.n_experts;
    int chooses = moe_index >= 0 && !p->weights_now.w[EXF_W_ROUTER_TABLE];
    const unsigned char *retained = r && r->retained_experts && chooses ? r->retained_experts(r->self, moe_index) : NULL;
    const float *bias = p->weights_now.w[EXF_W_ROUTER_BIAS];
    exf_queue *q = p->space[0].q;
    *mask = NULL;
    if (!retained) return EXF_OK;
    for (size_t e = 0; e < n; e++) p->mask[e] = retained[e] ? 0.0f : -INFINITY;
    p->b->upload(q, p->mask_device, p->mask, n * sizeof *p->mask);
    p->b->copy(q, p->mask_device + n, p->mask_device, n * sizeof *p->mask);
    if (bias) p->b->add(q, p->mask_device + n, bias, n);
    *mask = p->mask_device;
    return p->b->finish(q, err);
}

static exf_code rewrite(exf_pass *p, const exf_rewriter *r, const exf_step *s, exf_route_set *set, exf_err *err)
{
    const exf_architecture *a = &p->model->arch;
    exf_routes routes = {.layer = s->layer, .moe_index = s->moe_index, .batch = p->batch, .n_experts = a->n_experts, .top_k = a->top_k,
                         .probe = set != &p->routes, .by_token = p->weights_now.w[EXF_W_ROUTER_TABLE] != NULL, .ids = set->ids, .weights = set->weights};
    exf_code rc;
    if (!r || !r->rewrite) return EXF_OK;
    EXF_TRY(r->rewrite(r->self, &routes, err));
    EXF_TRY(exf_route_set_send(set, p->space[0].q, err));
out:
    return rc;
}

/* The first lane's routes as a lane's rewriter would have them. */
static exf_code make_probe(exf_step *s, size_t lane, exf_err *err)
{
    exf_pass *p = s->p;
    const exf_rewriter *r = p->lanes[lane].rewriter;
    exf_step probe = *s;
    exf_code rc;
    probe.routes = &p->probe[lane];
    EXF_TRY(load_mask(p, r, s->moe_index, &probe.mask, err));
    if (probe.mask) {
        EXF_TRY(exf_each_group(&probe, EXF_HIDDEN_READ, route_group, err));
        EXF_TRY(exf_route_set_fetch(probe.routes, 0, probe.routes->n, p->space[0].q, err));
        if (p->probe_router_routes[lane].n) EXF_TRY(exf_route_set_copy(&p->probe_router_routes[lane], probe.routes, p->space[0].q, err));
    } else {
        EXF_TRY(exf_route_set_copy(probe.routes, &p->first, p->space[0].q, err));
        if (p->probe_router_routes[lane].n) EXF_TRY(exf_route_set_copy(&p->probe_router_routes[lane], &p->first, p->space[0].q, err));
    }
    EXF_TRY(rewrite(p, r, s, probe.routes, err));
out:
    return rc;
}

/* ---- a layer ------------------------------------------------------------------- */

/* Mixer and router of one lane.  Where the lanes are still one, the first lane did
 * the mixing, and its routes are the lane's unless experts are missing. */
static exf_code mix_lane(exf_step *s, int joined, exf_err *err)
{
    exf_pass *p = s->p;
    exf_code rc;
    EXF_TRY(load_mask(p, p->lanes[s->lane].rewriter, s->moe_index, &s->mask, err));
    if (joined && s->lane > 0 && !s->mask) return exf_route_set_copy(s->routes, &p->first, p->space[0].q, err);
    if (joined && s->lane > 0)
        EXF_TRY(exf_each_group(s, EXF_HIDDEN_READ, route_group, err));
    else
        EXF_TRY(exf_each_group(s, EXF_HIDDEN_CHANGE, mix_group, err));
    if (exf_step_wants_host_routes(s)) EXF_TRY(exf_route_set_fetch(s->routes, 0, s->routes->n, p->space[0].q, err));
out:
    return rc;
}

/* What the first lane's routes are for beside its own experts. */
static exf_code share_first(exf_step *s, int joined, exf_err *err)
{
    exf_pass *p = s->p;
    exf_code rc = EXF_OK;
    if (!p->first.n) return EXF_OK;
    EXF_TRY(exf_route_set_copy(&p->first, s->routes, p->space[0].q, err));
    for (size_t i = 1; i < p->n_lanes; i++) {
        if (joined) EXF_TRY(exf_hidden_copy(&p->hidden, i, 0, p->space[0].q, err));
        if (p->probe[i].n) EXF_TRY(make_probe(s, i, err));
    }
    EXF_TRY(p->b->finish(p->space[0].q, err));
out:
    return rc;
}

/* 1 if a group's experts need not wait for the routes of the others: nobody rewrites them,
 * and the observer looks once and at nothing before. */
static int flows(const exf_step *s)
{
    const exf_lane *l = &s->p->lanes[s->lane];
    const exf_observer *o = l->observer;
    if (s->moe_index < 0) return 1;
    return s->p->n_lanes == 1 && !(l->rewriter && (l->rewriter->rewrite || l->rewriter->correct)) && !(o && (o->common_input || o->sweeps > 1));
}

static exf_code flow_group(exf_step *s, exf_err *err)
{
    size_t k = (size_t)s->p->model->arch.top_k;
    exf_code rc;
    EXF_TRY(mix_group(s, err));
    if (s->moe_index >= 0 && exf_step_wants_host_routes(s))
        EXF_TRY(exf_route_set_fetch(s->routes, s->group.row * k, s->group.n_rows * k, s->p->space[0].q, err));
    EXF_TRY(exf_expert_group(s, err));
out:
    return rc;
}

/* The whole layer group by group. */
static exf_code flow(exf_step *s, exf_progress *progress, exf_err *err)
{
    exf_code rc;
    EXF_TRY(load_mask(s->p, s->p->lanes[s->lane].rewriter, s->moe_index, &s->mask, err));
    EXF_TRY(exf_expert_begin(s, err));
    EXF_TRY(exf_each_group(s, EXF_HIDDEN_CHANGE, flow_group, err));
    EXF_TRY(exf_expert_end(s, progress, err));
out:
    return rc;
}

static exf_code run_lane(exf_pass *p, size_t lane, int layer, int moe_index, int joined, exf_progress *progress, exf_err *err)
{
    exf_step s = {.p = p, .lane = lane, .last = 1, .routes = &p->routes, .router_routes = &p->routes, .layer = layer, .moe_index = moe_index};
    const exf_rewriter *r = p->lanes[lane].rewriter;
    exf_code rc;
    if (flows(&s)) return flow(&s, progress, err);
    EXF_TRY(mix_lane(&s, joined, err));
    if (lane == 0) EXF_TRY(share_first(&s, joined, err));
    if (r && r->correct) {
        EXF_TRY(exf_route_set_copy(&p->router_routes, s.routes, p->space[0].q, err));
        s.router_routes = &p->router_routes;
    }
    EXF_TRY(rewrite(p, r, &s, s.routes, err));
    EXF_TRY(exf_expert_step(&s, progress, err));
out:
    return rc;
}

exf_code exf_layer_step(exf_pass *p, int layer, int moe_index, exf_progress *progress, exf_err *err)
{
    int joined = p->joined;
    size_t n = joined && moe_index < 0 ? 1 : p->n_lanes;
    exf_code rc = EXF_OK;
    if (moe_index >= 0) p->joined = 0;
    for (size_t i = 0; rc == EXF_OK && i < n; i++) rc = run_lane(p, i, layer, moe_index, joined, progress, err);
    return rc;
}
