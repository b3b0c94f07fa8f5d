/* mix.c - the first half of a layer: norm, mixer, residual, norm, router, sequence by sequence. */
#include "pass/forward_internal.h"

#include "base/err.h"

#include <omp.h>

/* ---- one sequence ------------------------------------------------------------------------- */

static double mixer_flops(const exf_step *s, const exf_span *span)
{
    const exf_architecture *a = &s->p->model->arch;
    return exf_mixer_of(a->mixer[s->moe.layer])->flops(a, s->moe.layer, span->n_tokens);
}

/* Norms the hidden states to the number type that products read, runs the mixer and updates the hidden states. */
static void mix_sequence(const exf_step *s, exf_workspace *w, float *hidden, const exf_span *span, const exf_mixer_arrays *m,
                         exf_arena *arena)
{
    const exf_architecture *a = &s->p->model->arch;
    const exf_layer_weights *lw = &s->p->weights_now;
    const float *norm = lw->w[EXF_W_MIXER_NORM];
    int layer = s->moe.layer, n = span->n_tokens, h = a->d_model;
    exf_residual_site site = exf_residual_site_of(lw, EXF_W_MIXER_MIX, EXF_W_MIXER_MIX_BASE, EXF_W_MIXER_MIX_SCALE);
    const float *u = exf_residual_read(w->b, w->q, a, &site, hidden, n, m->u, m->mixing);
    exf_mixer_call call = {.out = m->mixed, .n_tokens = n, .layer = layer, .a = a, .w = lw->w, .w16 = lw->w16,
                           .rope_tables = &s->p->rope_tables, .arena = arena, .b = w->b, .q = w->q};
    if (w->compute == EXF_COMPUTE_BF16) {
        uint16_t *rounded = (uint16_t *)(void *)m->normed;
        w->b->gpu->rmsnorm_rounded(w->q, rounded, NULL, u, norm, n, h, a->norm_eps);
        call.input16 = rounded;
    } else {
        w->b->rmsnorm(w->q, m->normed, h, u, h, norm, n, h, a->norm_eps);
        call.input = m->normed;
    }
    if (w->compute == EXF_COMPUTE_BF16 && a->residual.streams == 1 && !a->residual.normed) {
        /* the last product adds to the hidden states itself */
        call.out = hidden;
        call.beta = 1;
    }
    exf_mixer_of(a->mixer[layer])->run(&call);
    if (a->residual.normed) w->b->rmsnorm(w->q, m->mixed, h, m->mixed, h, lw->w[EXF_W_MIXER_OUT_NORM], n, h, a->norm_eps);
    if (call.beta == 0) exf_residual_update(w->b, w->q, a, hidden, m->mixed, n, m->mixing);
    w->times.flops += mixer_flops(s, span);
}

/* Shows what the router read of a sequence, and what it made of it: to the observer, then to the rewriters that get the routes
 * next, the lane's, and those of lanes that take over the first lane's routes or probe them. */
static exf_code show_sequence(const exf_step *s, exf_workspace *w, const exf_span *span, const exf_mixer_arrays *m,
                              const float *logits, exf_err *err)
{
    const exf_pass *p = s->p;
    const exf_architecture *a = &p->model->arch;
    const exf_route_set *routes = s->moe.routes;
    size_t slot = span->offset * (size_t)a->top_k;
    const exf_input_block b = {.q = w->b->gpu ? w->q : NULL, .layer = s->moe.layer, .row = span->offset,
                               .n_tokens = span->n_tokens, .n_experts = a->n_experts, .top_k = a->top_k, .d_model = a->d_model,
                               .worker = (int)(w - p->space), .moe_input = m->normed,
                               .split = p->weights_now.router_split != NULL, .squares = w->b->gpu ? m->squares : NULL,
                               .logits = logits, .ids = routes->ids_device + slot, .weights = routes->weights_device + slot};
    exf_code rc = s->inputs ? s->inputs->input(s->inputs->self, &b, err) : EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < p->n_lanes; i++) {
        const exf_rewriter *r = p->lanes[i].rewriter;
        int gets = i == s->lane || (s->lane == 0 && (s->joined || p->probe_routes[i].n));
        if (r && r->routed && gets && !s->is_probe) rc = r->routed(r->self, &b, err);
    }
    return rc;
}

/* Norms the router's input with the weights of a role, in the form that its product reads. */
static exf_matrix norm_input(const exf_step *s, exf_workspace *w, const exf_mixer_arrays *m, const float *u, exf_role role, int n)
{
    const exf_architecture *a = &s->p->model->arch;
    const exf_layer_weights *lw = &s->p->weights_now;
    if (lw->router_split) {
        int shown = 0; /* 1: a rewriter reads the sums of squares */
        for (size_t i = 0; i < s->p->n_lanes; i++) shown |= s->p->lanes[i].rewriter && s->p->lanes[i].rewriter->routed;
        w->b->gpu->rmsnorm_split(w->q, (uint16_t *)(void *)m->normed, shown ? m->squares : NULL, u, lw->w[role], n, a->d_model,
                                 a->norm_eps);
        return exf_bf16((const uint16_t *)(const void *)m->normed);
    }
    w->b->rmsnorm(w->q, m->normed, a->d_model, u, a->d_model, lw->w[role], n, a->d_model, a->norm_eps);
    return exf_f32(m->normed);
}

/* Runs the router; where something reads the logits they are left in s->logits, and in s->logits_device.  What hooks see is
 * the experts' input, which a router may read under a norm of its own. */
static exf_code route_sequence(const exf_step *s, exf_workspace *w, const float *hidden, const exf_span *span,
                               const exf_mixer_arrays *m, exf_err *err)
{
    const exf_architecture *a = &s->p->model->arch;
    const exf_layer_weights *lw = &s->p->weights_now;
    const exf_route_set *routes = s->moe.routes;
    int n = span->n_tokens;
    size_t slot = span->offset * (size_t)a->top_k;
    exf_residual_site site = exf_residual_site_of(lw, EXF_W_FFN_MIX, EXF_W_FFN_MIX_BASE, EXF_W_FFN_MIX_SCALE);
    const float *u = exf_residual_read(w->b, w->q, a, &site, hidden, n, m->u, exf_moe_mixing(&s->moe, span->offset));
    size_t n_logits = (size_t)n * (size_t)a->n_experts;
    float *to = s->logits ? s->logits + span->offset * (size_t)a->n_experts : NULL, *logits = to && !w->b->gpu ? to : m->logits;
    if (s->logits_device) logits = s->logits_device + span->offset * (size_t)a->n_experts;
    exf_code rc = EXF_OK;
    const exf_matrix x = norm_input(s, w, m, u, a->residual.normed ? EXF_W_ROUTER_NORM : EXF_W_FFN_NORM, n);
    exf_routing_run(w, routes->ids_device + slot, routes->weights_device + slot, x, s->p->tokens_device + span->offset, n, a, lw,
                    s->mask, logits);
    w->times.flops += 2.0 * n * a->d_model * a->n_experts;
    if (s->moe.slot_logits)
        w->b->gpu->slot_logits(w->q, s->moe.slot_logits + slot, logits, routes->ids_device + slot, n, a->n_experts, a->top_k);
    if (a->residual.normed) norm_input(s, w, m, u, EXF_W_FFN_NORM, n);
    EXF_TRY(show_sequence(s, w, span, m, logits, err));
    if (to && w->b->gpu) EXF_TRY(w->b->download(w->q, to, logits, n_logits * sizeof *to, err));
out:
    return rc;
}

/* The parts of a layer's first half that run. */
typedef struct {
    const exf_step *step;
    int mixes, routes;
} parts;

/* Runs the parts for the group's i-th sequence. */
static exf_code run_sequence(const parts *t, size_t i, int worker, exf_err *err)
{
    const exf_step *s = t->step;
    exf_workspace *w = &s->p->space[worker];
    const exf_span *span = &s->p->batch->span[s->moe.group.first + i];
    float *hidden = exf_moe_rows(&s->moe, span->offset);
    exf_arena arena = {w->floats, 0};
    exf_mixer_arrays m;
    exf_code rc = EXF_OK;
    double start = exf_clock();
    exf_mixer_carve(&m, &arena, &s->p->model->arch, span->n_tokens);
    if (t->mixes) mix_sequence(s, w, hidden, span, &m, &arena);
    double mixed = exf_clock();
    if (t->routes) EXF_TRY(route_sequence(s, w, hidden, span, &m, err));
    if (!w->b->gpu) exf_progress_add(t->mixes ? mixer_flops(s, span) : span->n_tokens);
    if (s->p->options->timed) return EXF_OK; /* timed_turns() measures instead */
    exf_add_time(w, &w->times.mixer, mixed - start);
    exf_add_time(w, &w->times.router, exf_clock() - mixed);
out:
    return rc;
}

/* ---- the group's sequences ------------------------------------------------------------------ */

enum { MOST_STAGES = 16 }; /* stages of a group that a GPU's clock measures, at most */

/* Ends the stage of the group's sequences [from, to) on the first stream, with which the others keep pace; goes_on:
 * begins the next. */
static void end_stage(const parts *t, size_t from, size_t to, int goes_on)
{
    const exf_step *s = t->step;
    exf_pass *p = s->p;
    exf_part_times *times = &p->space[0].times;
    const exf_span *span = &p->batch->span[s->moe.group.first];
    double units = 0;
    for (size_t i = from; i < to; i++) units += t->mixes ? mixer_flops(s, &span[i]) : span[i].n_tokens;
    exf_stage_end(p->clock, p->space[0].q, t->mixes ? &times->mixer : &times->router,
                  t->mixes ? EXF_WORK_MIXER + (int)p->model->arch.mixer[s->moe.layer] : EXF_WORK_ROUTE, units);
    if (goes_on) exf_stage_begin(p->clock, p->space[0].q);
}

/* Runs the sequences in turns on the CUDA streams, so that one sequence's small kernels overlap with
 * another's.  Each stream has its own workspace, so results do not depend on the turns. */
static exf_code take_turns(parts *t, exf_err *err)
{
    const exf_step *s = t->step;
    const exf_pass *p = s->p;
    size_t stride = (s->moe.group.n / MOST_STAGES + 1) * (size_t)p->n_spaces;
    exf_code rc = EXF_OK;
    for (int i = 1; i < p->n_spaces; i++) p->b->gpu->wait_for(p->space[i].q, p->space[0].q); /* stream 0 wrote the rows */
    exf_stage_begin(p->clock, p->space[0].q);
    for (size_t i = 0; i < s->moe.group.n; i++) {
        EXF_TRY(exf_stop_check(err));
        if (i && i % stride == 0) end_stage(t, i - stride, i, 1);
        EXF_TRY(run_sequence(t, i, (int)(i % (size_t)p->n_spaces), err));
    }
    for (int i = 1; i < p->n_spaces; i++) p->b->gpu->wait_for(p->space[0].q, p->space[i].q);
    end_stage(t, (s->moe.group.n - 1) / stride * stride, s->moe.group.n, 0);
out:
    return rc;
}

/* Runs the parts one after the other with waits between them: the seconds of a part can only be
 * measured if all sequences finish it before the next part begins. */
static exf_code timed_turns(parts *t, double *seconds, exf_err *err)
{
    double start = exf_clock();
    exf_code rc;
    EXF_TRY(take_turns(t, err));
    EXF_TRY(exf_pass_finish(t->step->p, err));
    *seconds += exf_clock() - start;
out:
    return rc;
}

/* Runs the parts for all sequences of the group, on the CPU each by a thread. */
static exf_code run_group(const exf_step *s, int mixes, int routes, exf_err *err)
{
    exf_pass *p = s->p;
    exf_part_times *times = &p->space[0].times;
    parts both = {s, mixes, routes}, mixer = {s, 1, 0}, router = {s, 0, 1};
    exf_loop loop = EXF_LOOP;
    exf_code rc = EXF_OK;
    if (p->b->gpu && !p->options->timed) return take_turns(&both, err);
    if (p->b->gpu) {
        if (mixes) EXF_TRY(timed_turns(&mixer, &times->mixer, err));
        if (routes) EXF_TRY(timed_turns(&router, &times->router, err));
        return EXF_OK;
    }
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(s->moe.group.n, p->n_workers))
    for (size_t i = 0; i < s->moe.group.n; i++) {
        exf_err e;
        if (exf_loop_takes(&loop, i) && run_sequence(&both, i, omp_get_thread_num(), &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    rc = exf_loop_end(&loop, err);
out:
    return rc;
}

exf_code exf_mix_group(exf_step *s, exf_err *err)
{
    exf_pass_turn(s->p, EXF_WORK_MIXER + (int)s->p->model->arch.mixer[s->moe.layer]);
    return run_group(s, 1, s->moe.moe_index >= 0, err);
}

exf_code exf_route_group(exf_step *s, exf_err *err)
{
    exf_pass_turn(s->p, EXF_WORK_ROUTE);
    return run_group(s, 0, 1, err);
}
