/* layer_step.c - see layer_step.h.
 *
 * A layer is two sweeps over the sequences: mixer and router first, so that a
 * rewriter sees the routes of the whole run (a decode batch spans sequences),
 * then the experts. */
#include "forward/layer_step.h"

#include "base/mem.h"
#include "forward/each.h"
#include "forward/experts.h"
#include "forward/mixer.h"
#include "forward/residual.h"
#include "forward/routing.h"

#include <math.h>

typedef struct {
    exf_pass *p;
    const exf_lane *lane;
    float *hidden;
    int layer, moe_index;
} step;

static size_t row_width(const exf_architecture *a)
{
    return (size_t)a->residual.streams * (size_t)a->d_model;
}

static void norm_rows(exf_workspace *w, float *out, const float *rows, const float *weight, int n, const exf_architecture *a)
{
    w->b->rmsnorm(w->q, out, a->d_model, rows, a->d_model, weight, n, a->d_model, a->norm_eps);
}

static exf_residual_site site_of(const exf_layer_weights *lw, exf_role fn, exf_role base, exf_role scale)
{
    return (exf_residual_site){lw->w[fn], lw->w[base], lw->w[scale]};
}

/* ---- sweep 1: h <- residual(h, mixer(norm(h))); routes = router(norm(h)) --- */

static void mix(const step *s, exf_workspace *w, float *hidden, int n, const exf_mixer_space *space, exf_arena *arena)
{
    const exf_pass *p = s->p;
    const exf_architecture *a = &p->model->arch;
    const exf_layer_weights *lw = &p->weights_now;
    exf_residual_site site = site_of(lw, EXF_W_MIXER_MIX, EXF_W_MIXER_MIX_BASE, EXF_W_MIXER_MIX_SCALE);
    const float *u = exf_residual_open(w->b, w->q, a, &site, hidden, n, space->u, space->mixing);
    norm_rows(w, space->normed, u, lw->w[EXF_W_MIXER_NORM], n, a);
    exf_mixer_call call = {.out = space->mixed, .input = space->normed, .n_tokens = n, .layer = s->layer, .a = a, .w = lw->w,
                           .positions = &p->positions, .arena = arena, .b = w->b, .q = w->q};
    exf_mixer_of(a->mixer[s->layer])->run(&call);
    exf_residual_close(w->b, w->q, a, hidden, space->mixed, n, space->mixing);
}

static void route(const step *s, exf_workspace *w, const float *hidden, const exf_span *span, const exf_mixer_space *space)
{
    const exf_pass *p = s->p;
    const exf_architecture *a = &p->model->arch;
    const exf_layer_weights *lw = &p->weights_now;
    int n = span->n_tokens;
    exf_residual_site site = site_of(lw, EXF_W_FFN_MIX, EXF_W_FFN_MIX_BASE, EXF_W_FFN_MIX_SCALE);
    const float *u = exf_residual_open(w->b, w->q, a, &site, hidden, n, space->u, space->mixing);
    norm_rows(w, space->normed, u, lw->w[EXF_W_FFN_NORM], n, a);
    size_t at = span->offset * (size_t)a->top_k;
    exf_routing_run(w, p->ids_there + at, p->weights_there + at, space->normed, p->tokens_there + span->offset, n, a, lw, space->logits);
}

static exf_code mix_and_route(void *self, size_t sequence, int worker, exf_err *err)
{
    const step *s = self;
    exf_workspace *w = &s->p->space[worker];
    const exf_pass *p = s->p;
    const exf_architecture *a = &p->model->arch;
    const exf_span *span = &p->batch->span[sequence];
    float *hidden = s->hidden + span->offset * row_width(a);
    exf_arena arena = {w->floats, 0};
    exf_mixer_space space;
    double start = exf_clock();
    exf_carve_mixer(&space, &arena, a, span->n_tokens);
    mix(s, w, hidden, span->n_tokens, &space, &arena);
    double mixed = exf_clock();
    w->times.mixer += mixed - start;
    if (s->moe_index >= 0) route(s, w, hidden, span, &space);
    w->times.router += exf_clock() - mixed;
    return w->b->finish(w->q, err);
}

/* ---- sweep 2: h <- residual(h, experts(norm(h))) ----------------------------- */

static exf_code check_finite(exf_workspace *w, const float *hidden, int n_tokens, size_t width, int layer, size_t sequence, int position,
                             exf_err *err)
{
    int64_t at;
    exf_code rc = w->b->first_not_finite(w->q, hidden, (size_t)n_tokens * width, &at, err);
    if (rc != EXF_OK || at < 0) return rc;
    return exf_fail(err, EXF_NUMERIC, "layer %d: the hidden state of sequence %zu at position %d is not finite", layer, sequence,
                    position + (int)((size_t)at / width));
}

/* The array as ordinary memory: itself, or a copy behind *mirror, which moves on. */
static exf_code visible(exf_workspace *w, const float *x, size_t n, float **mirror, const float **out, exf_err *err)
{
    *out = x;
    if (w->b->host_memory) return EXF_OK;
    *out = *mirror;
    *mirror += n;
    return w->b->download(w->q, *mirror - n, x, n * sizeof *x, err);
}

static exf_code show_block(const step *s, size_t sequence, int position, int n, const exf_experts_space *e, exf_workspace *w, int worker,
                           exf_err *err)
{
    const exf_observer *o = s->lane->observer;
    const exf_architecture *a = &s->p->model->arch;
    if (!o || !o->block) return EXF_OK;
    size_t row = s->p->batch->span[sequence].offset + (size_t)position, at = row * (size_t)a->top_k, rows = (size_t)n * (size_t)a->d_model;
    float *mirror = w->mirror;
    exf_moe_block b = {
        .layer = s->layer, .moe_index = s->moe_index, .sequence = sequence, .row = row, .position = position, .n_tokens = n,
        .n_experts = a->n_experts, .top_k = a->top_k, .d_model = a->d_model, .worker = worker,
        .topk_ids = s->p->ids + at, .topk_weights = s->p->weights + at,
    };
    exf_code rc;
    EXF_TRY(visible(w, e->input, rows, &mirror, &b.moe_input, err));
    EXF_TRY(visible(w, e->outputs, rows * (size_t)a->top_k, &mirror, &b.expert_outputs, err));
    EXF_TRY(visible(w, e->routed, rows, &mirror, &b.routed_output, err));
    EXF_TRY(visible(w, e->block, rows, &mirror, &b.block_output, err));
    rc = o->block(o->self, &b, err);
    if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d, sequence %zu, block at position %d: ", s->layer, sequence, position);
out:
    return rc;
}

static exf_code run_block(const step *s, size_t sequence, int position, int n, int worker, exf_err *err)
{
    const exf_pass *p = s->p;
    exf_workspace *w = &p->space[worker];
    const exf_architecture *a = &p->model->arch;
    const exf_layer_weights *lw = &p->weights_now;
    size_t row = p->batch->span[sequence].offset + (size_t)position, at = row * (size_t)a->top_k;
    float *hidden = s->hidden + row * row_width(a);
    double start = exf_clock(), ran;
    exf_arena arena = {w->floats, 0};
    exf_experts_space e;
    exf_carve_experts(&e, &arena, a, n);
    exf_residual_site site = site_of(lw, EXF_W_FFN_MIX, EXF_W_FFN_MIX_BASE, EXF_W_FFN_MIX_SCALE);
    const float *u = exf_residual_open(w->b, w->q, a, &site, hidden, n, e.u, e.mixing);
    norm_rows(w, e.input, u, lw->w[EXF_W_FFN_NORM], n, a);
    if (s->moe_index < 0) {
        exf_dense_ffn_run(w, n, a, lw, &e);
    } else {
        exf_experts_run(w, n, p->ids + at, p->weights_there + at, a, lw, &e);
        exf_shared_experts_run(w, n, a, lw, &e);
    }
    ran = exf_clock();
    if (s->moe_index >= 0) {
        exf_code rc = show_block(s, sequence, position, n, &e, w, worker, err);
        if (rc != EXF_OK) return rc;
    }
    w->times.observe += exf_clock() - ran;
    exf_residual_close(w->b, w->q, a, hidden, e.block, n, e.mixing);
    w->times.experts += ran - start;
    return check_finite(w, hidden, n, row_width(a), s->layer, sequence, position, err);
}

static exf_code feed_forward(void *self, size_t sequence, int worker, exf_err *err)
{
    const step *s = self;
    int n = s->p->batch->span[sequence].n_tokens;
    exf_code rc = EXF_OK;
    for (int at = 0; rc == EXF_OK && at < n; at += EXF_MOE_BLOCK)
        rc = run_block(s, sequence, at, n - at < EXF_MOE_BLOCK ? n - at : EXF_MOE_BLOCK, worker, err);
    return rc;
}

/* The routes as ordinary memory, for the rewriter and for bucketing. */
static exf_code fetch_routes(exf_pass *p, exf_err *err)
{
    size_t n = p->batch->n_tokens * (size_t)p->model->arch.top_k;
    exf_code rc = EXF_OK;
    if (p->b->host_memory) return EXF_OK;
    EXF_TRY(p->b->download(p->space[0].q, p->ids, p->ids_there, n * sizeof *p->ids, err));
    EXF_TRY(p->b->download(p->space[0].q, p->weights, p->weights_there, n * sizeof *p->weights, err));
out:
    return rc;
}

static exf_code send_weights(exf_pass *p, exf_err *err)
{
    size_t n = p->batch->n_tokens * (size_t)p->model->arch.top_k;
    if (p->b->host_memory) return EXF_OK;
    p->b->upload(p->space[0].q, p->weights_there, p->weights, n * sizeof *p->weights);
    return p->b->finish(p->space[0].q, err);
}

exf_code exf_layer_step(exf_pass *p, const exf_lane *lane, float *hidden, int layer, int moe_index, exf_progress *progress, exf_err *err)
{
    exf_code rc;
    step s = {p, lane, hidden, layer, moe_index};
    const exf_observer *o = lane->observer;
    EXF_TRY(exf_each(p->batch->n_sequences, p->n_workers, mix_and_route, &s, err));
    if (moe_index >= 0) EXF_TRY(fetch_routes(p, err));
    if (moe_index >= 0 && lane->rewriter) {
        exf_routes routes = {layer, moe_index, p->batch, p->model->arch.n_experts, p->model->arch.top_k, p->ids, p->weights};
        EXF_TRY(lane->rewriter->rewrite(lane->rewriter->self, &routes, err));
        EXF_TRY(send_weights(p, err));
    }
    if (moe_index >= 0 && o && o->layer_begin) EXF_TRY(o->layer_begin(o->self, layer, moe_index, err));
    EXF_TRY(exf_each(p->batch->n_sequences, p->n_workers, feed_forward, &s, err));
    if (moe_index >= 0 && o && o->layer_end) EXF_TRY(o->layer_end(o->self, layer, moe_index, progress, err));
out:
    return rc;
}

/* ---- the head ---------------------------------------------------------------- */

typedef struct {
    exf_pass *p;
    const exf_observer *observer;
    const float *hidden;
} head_step;

static exf_code head_of_sequence(void *self, size_t sequence, int worker, exf_err *err)
{
    const head_step *s = self;
    exf_workspace *w = &s->p->space[worker];
    const exf_architecture *a = &s->p->model->arch;
    const exf_layer_weights *lw = &s->p->weights_now;
    const exf_span *span = &s->p->batch->span[sequence];
    exf_arena arena = {w->floats, 0};
    exf_head_space h;
    double start = exf_clock();
    exf_code rc = EXF_OK;
    exf_carve_head(&h, &arena, a);
    exf_residual_site site = site_of(lw, EXF_W_HEAD_MIX, EXF_W_HEAD_MIX_BASE, EXF_W_HEAD_MIX_SCALE);
    for (int at = 0; rc == EXF_OK && at < span->n_tokens; at += EXF_HEAD_ROWS) {
        int n = span->n_tokens - at < EXF_HEAD_ROWS ? span->n_tokens - at : EXF_HEAD_ROWS;
        size_t row = span->offset + (size_t)at;
        const float *u = exf_residual_collapse(w->b, w->q, a, &site, s->hidden + row * row_width(a), n, h.u);
        norm_rows(w, h.normed, u, lw->w[EXF_W_FINAL_NORM], n, a);
        w->b->gemm_xwt(w->q, h.logits, a->vocab, exf_f32(h.normed), a->d_model, exf_f32(lw->w[EXF_W_HEAD]), a->d_model, n, a->vocab, a->d_model, 1, 0);
        exf_logits_block b = {sequence, row, at, n, a->vocab, worker, NULL};
        float *mirror = w->mirror;
        rc = visible(w, h.logits, (size_t)n * (size_t)a->vocab, &mirror, &b.logits, err);
        if (rc == EXF_OK) rc = s->observer->logits(s->observer->self, &b, err);
    }
    w->times.head += exf_clock() - start;
    return rc;
}

exf_code exf_head_step(exf_pass *p, const exf_lane *lanes, size_t n_lanes, exf_err *err)
{
    exf_code rc = exf_layer_weights_read(&p->weights_now, p->model, -1, err);
    for (size_t i = 0; rc == EXF_OK && i < n_lanes; i++) {
        head_step s = {p, lanes[i].observer, p->hidden[i]};
        if (s.observer && s.observer->logits) rc = exf_each(p->batch->n_sequences, p->n_workers, head_of_sequence, &s, err);
    }
    return rc;
}
