/* pass_mix.c - see pass.h. */
#include "pass/pass.h"

#include "base/stop.h"
#include "pass/memory_plan.h"
#include "pass/mixer.h"
#include "pass/moe_layer.h"
#include "pass/routes.h"

/* ---- one sequence ------------------------------------------------------------------------- */

static void norm_rows(exf_workspace *w, float *out, const float *rows, const float *weight, int n, const exf_architecture *a)
{
    w->b->rmsnorm(w->q, out, a->d_model, rows, a->d_model, weight, n, a->d_model, a->norm_eps);
}

/* Norms the mixer's input and converts it to the number type that products read. */
static void norm_input(exf_mixer_call *call, exf_workspace *w, const exf_mixer_arrays *m, const float *u, const float *weight)
{
    if (w->compute == EXF_COMPUTE_BF16) {
        uint16_t *rounded = (uint16_t *)(void *)m->normed;
        w->b->gpu->rmsnorm_rounded(w->q, rounded, NULL, u, weight, call->n_tokens, call->a->d_model, call->a->norm_eps);
        call->input16 = rounded;
    } else {
        norm_rows(w, m->normed, u, weight, call->n_tokens, call->a);
        call->input = m->normed;
    }
}

static void mix(const exf_step *s, exf_workspace *w, float *hidden, int n, const exf_mixer_arrays *m, exf_arena *arena)
{
    const exf_architecture *a = &s->p->model->arch;
    const exf_layer_weights *lw = &s->p->weights_now;
    int layer = s->moe.layer;
    exf_residual_site site = exf_residual_site_of(lw, EXF_W_MIXER_MIX, EXF_W_MIXER_MIX_BASE, EXF_W_MIXER_MIX_SCALE);
    const float *u = exf_residual_read(w->b, w->q, a, &site, hidden, n, m->u, m->mixing);
    exf_mixer_call call = {.out = m->mixed, .n_tokens = n, .layer = layer, .a = a, .w = lw->w, .w16 = lw->w16,
                           .rope_tables = &s->p->rope_tables, .arena = arena, .b = w->b, .q = w->q};
    norm_input(&call, w, m, u, lw->w[EXF_W_MIXER_NORM]);
    if (w->compute == EXF_COMPUTE_BF16 && a->residual.streams == 1) { /* the last product adds to the hidden states itself */
        call.out = hidden;
        call.beta = 1;
    }
    exf_mixer_of(a->mixer[layer])->run(&call);
    if (call.beta == 0) exf_residual_update(w->b, w->q, a, hidden, m->mixed, n, m->mixing);
    w->times.flops += exf_mixer_of(a->mixer[layer])->flops(a, layer, n);
}

/* Runs the router; where something reads the logits they are left in s->logits. */
static exf_code route(const exf_step *s, exf_workspace *w, const float *hidden, const exf_span *span, const exf_mixer_arrays *m,
                      exf_err *err)
{
    const exf_architecture *a = &s->p->model->arch;
    const exf_layer_weights *lw = &s->p->weights_now;
    const exf_route_set *routes = s->moe.routes;
    int n = span->n_tokens;
    size_t slot = span->offset * (size_t)a->top_k;
    exf_residual_site site = exf_residual_site_of(lw, EXF_W_FFN_MIX, EXF_W_FFN_MIX_BASE, EXF_W_FFN_MIX_SCALE);
    const float *u = exf_residual_read(w->b, w->q, a, &site, hidden, n, m->u, m->mixing);
    exf_matrix x = exf_f32(m->normed);
    size_t n_logits = (size_t)n * (size_t)a->n_experts;
    float *to = s->logits ? s->logits + span->offset * (size_t)a->n_experts : NULL, *logits = to && !w->b->gpu ? to : m->logits;
    if (lw->router_split) {
        x = exf_bf16((const uint16_t *)(const void *)m->normed);
        w->b->gpu->rmsnorm_split(w->q, (uint16_t *)(void *)m->normed, u, lw->w[EXF_W_FFN_NORM], n, a->d_model, a->norm_eps);
    } else {
        norm_rows(w, m->normed, u, lw->w[EXF_W_FFN_NORM], n, a);
    }
    exf_routing_run(w, routes->ids_device + slot, routes->weights_device + slot, x, s->p->tokens_device + span->offset, n, a, lw,
                    s->mask, logits);
    w->times.flops += 2.0 * n * a->d_model * a->n_experts;
    return to && w->b->gpu ? w->b->download(w->q, to, logits, n_logits * sizeof *to, err) : EXF_OK;
}

static double mixer_flops(const exf_step *s, const exf_span *span)
{
    const exf_architecture *a = &s->p->model->arch;
    return exf_mixer_of(a->mixer[s->moe.layer])->flops(a, s->moe.layer, span->n_tokens);
}

static exf_code run_sequence(const exf_step *s, size_t sequence, int worker, int mixes, int routes, exf_err *err)
{
    exf_workspace *w = &s->p->space[worker];
    const exf_span *span = &s->p->batch->span[sequence];
    float *hidden = exf_moe_rows(&s->moe, span->offset);
    exf_arena arena = {w->floats, 0};
    exf_mixer_arrays m;
    exf_code rc = EXF_OK;
    double start = exf_clock();
    exf_mixer_carve(&m, &arena, &s->p->model->arch, span->n_tokens);
    if (mixes) mix(s, w, hidden, span->n_tokens, &m, &arena);
    double mixed = exf_clock();
    if (routes) EXF_TRY(route(s, w, hidden, span, &m, err));
    if (!w->b->gpu) exf_progress_add(mixes ? mixer_flops(s, span) : span->n_tokens);
    if (s->p->options->timed) return EXF_OK; /* timed_turns() measures instead */
    exf_add_time(w, &w->times.mixer, mixed - start);
    exf_add_time(w, &w->times.router, exf_clock() - mixed);
out:
    return rc;
}

/* ---- the group's sequences ------------------------------------------------------------------ */

typedef struct {
    const exf_step *step;
    int mixes, routes;
} parts;

static exf_code run_one(void *self, size_t i, int worker, exf_err *err)
{
    const parts *p = self;
    return run_sequence(p->step, p->step->moe.group.first + i, worker, p->mixes, p->routes, err);
}

enum { TOLD = 16 }; /* how often in a group a GPU's clock is read, at most */

/* Ends the stage of the group's sequences [from, to) on the first stream, with which the others keep pace; goes_on:
 * begins the next. */
static void tell_turns(const parts *t, size_t from, size_t to, int goes_on)
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
static exf_code take_turns(parts *parts_of, exf_err *err)
{
    const exf_step *s = parts_of->step;
    const exf_pass *p = s->p;
    size_t stride = (s->moe.group.n / TOLD + 1) * (size_t)p->n_spaces;
    exf_code rc = EXF_OK;
    for (int i = 1; i < p->n_spaces; i++) p->b->gpu->wait_for(p->space[i].q, p->space[0].q); /* stream 0 wrote the rows */
    exf_stage_begin(p->clock, p->space[0].q);
    for (size_t i = 0; i < s->moe.group.n; i++) {
        EXF_TRY(exf_stop_check(err));
        if (i && i % stride == 0) tell_turns(parts_of, i - stride, i, 1);
        EXF_TRY(run_one(parts_of, i, (int)(i % (size_t)p->n_spaces), err));
    }
    for (int i = 1; i < p->n_spaces; i++) p->b->gpu->wait_for(p->space[0].q, p->space[i].q);
    tell_turns(parts_of, (s->moe.group.n - 1) / stride * stride, s->moe.group.n, 0);
out:
    return rc;
}

/* Runs the parts one after the other with waits between them: the seconds of a part can only be
 * measured if all sequences finish it before the next part begins. */
static exf_code timed_turns(parts *parts_of, double *seconds, exf_err *err)
{
    double start = exf_clock();
    exf_code rc;
    EXF_TRY(take_turns(parts_of, err));
    EXF_TRY(exf_pass_finish(parts_of->step->p, err));
    *seconds += exf_clock() - start;
out:
    return rc;
}

static exf_code run_group(const exf_step *s, int mixes, int routes, exf_err *err)
{
    exf_pass *p = s->p;
    exf_part_times *times = &p->space[0].times;
    parts both = {s, mixes, routes}, mixer = {s, 1, 0}, router = {s, 0, 1};
    exf_code rc = EXF_OK;
    if (!p->b->gpu) return exf_parallel_for(s->moe.group.n, p->n_workers, run_one, &both, err);
    if (!p->options->timed) return take_turns(&both, err);
    if (mixes) EXF_TRY(timed_turns(&mixer, &times->mixer, err));
    if (routes) EXF_TRY(timed_turns(&router, &times->router, err));
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
