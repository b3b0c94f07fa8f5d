/* layer_step.c - see layer_step.h.
 *
 * A layer is two sweeps over the sequences: mixer and router first, so that a
 * rewriter sees the routes of the whole run (a decode batch spans sequences),
 * then the experts. */
#include "forward/layer_step.h"

#include "base/mem.h"
#include "base/stop.h"
#include "forward/experts.h"
#include "kernels/gemm.h"
#include "kernels/rmsnorm.h"
#include "kernels/router.h"

#include <math.h>
#include <omp.h>

/* The first failure in order of sequence wins, so that messages do not depend on
 * which worker was faster. */
typedef struct {
    exf_err err;
    size_t sequence;
    volatile int failed;
} first_failure;

static void note_failure(first_failure *f, size_t sequence, const exf_err *err)
{
#pragma omp critical(exf_first_failure)
    {
        if (!f->failed || sequence < f->sequence) {
            f->err = *err;
            f->sequence = sequence;
            f->failed = 1;
        }
    }
}

typedef exf_code (*sequence_fn)(void *self, size_t sequence, exf_workspace *w, int worker, exf_err *err);

/* Runs fn for every sequence on the workers; each sequence on one of them. */
static exf_code each_sequence(exf_pass *p, sequence_fn fn, void *self, exf_err *err)
{
    first_failure failure = {.failed = 0};
#pragma omp parallel for schedule(dynamic, 1) num_threads(p->n_workers)
    for (size_t i = 0; i < p->batch->n_sequences; i++) {
        exf_err local = {.code = EXF_OK};
        if (failure.failed && i > failure.sequence) continue;
        exf_code rc = exf_stop_check(&local);
        int worker = omp_get_thread_num();
        if (rc == EXF_OK) rc = fn(self, i, &p->space[worker], worker, &local);
        if (rc != EXF_OK) note_failure(&failure, i, &local);
    }
    if (!failure.failed) return EXF_OK;
    *err = failure.err;
    return err->code;
}

typedef struct {
    exf_pass *p;
    const exf_lane *lane;
    float *hidden;
    int layer, moe_index;
} step;

/* ---- sweep 1: h += mixer(norm(h)); routes = router(norm(h)) --------------- */

static void norm_rows(float *out, const float *hidden, const float *weight, int n, const exf_architecture *a)
{
    exf_rmsnorm_cpu(out, a->d_model, hidden, a->d_model, weight, n, a->d_model, a->norm_eps);
}

static exf_code mix_and_route(void *self, size_t sequence, exf_workspace *w, int worker, exf_err *err)
{
    const step *s = self;
    const exf_pass *p = s->p;
    const exf_architecture *a = &p->model->arch;
    const exf_span *span = &p->batch->span[sequence];
    float *hidden = s->hidden + span->offset * (size_t)a->d_model;
    int n = span->n_tokens;
    double start = exf_clock();
    (void)worker;
    (void)err;
    norm_rows(w->mixer.normed, hidden, p->weights_now.w[EXF_W_MIXER_NORM], n, a);
    exf_mixer_attention(hidden, n, a, &p->weights_now, &p->rope, &w->mixer);
    double mixed = exf_clock();
    w->times.mixer += mixed - start;
    if (s->moe_index < 0) return EXF_OK;
    norm_rows(w->mixer.normed, hidden, p->weights_now.w[EXF_W_FFN_NORM], n, a);
    exf_gemm_xwt_cpu(w->mixer.logits, a->n_experts, w->mixer.normed, a->d_model, p->weights_now.w[EXF_W_ROUTER], a->d_model, n,
                     a->n_experts, a->d_model, 1, 0);
    size_t at = span->offset * (size_t)a->top_k;
    exf_router_softmax_cpu(p->ids + at, p->weights + at, w->mixer.logits, n, a->n_experts, a->top_k, a->router.renormalise, w->scores);
    w->times.router += exf_clock() - mixed;
    return EXF_OK;
}

/* ---- sweep 2: h += experts(norm(h)) ---------------------------------------- */

/* hidden += output, and proof that it stayed finite. */
static exf_code add_residual(float *hidden, const float *output, size_t n, int d_model, int layer, size_t sequence, int position, exf_err *err)
{
    for (size_t i = 0; i < n; i++) {
        hidden[i] += output[i];
        if (!isfinite(hidden[i]))
            return exf_fail(err, EXF_NUMERIC, "layer %d: the hidden state of sequence %zu at position %d is not finite", layer, sequence,
                            position + (int)(i / (size_t)d_model));
    }
    return EXF_OK;
}

static exf_code show_block(const step *s, size_t sequence, int position, int n, const exf_workspace *w, int worker, exf_err *err)
{
    const exf_observer *o = s->lane->observer;
    const exf_architecture *a = &s->p->model->arch;
    if (!o || !o->block) return EXF_OK;
    size_t row = s->p->batch->span[sequence].offset + (size_t)position, at = row * (size_t)a->top_k;
    exf_moe_block b = {
        .layer = s->layer, .moe_index = s->moe_index, .sequence = sequence, .row = row, .position = position, .n_tokens = n,
        .n_experts = a->n_experts, .top_k = a->top_k, .d_model = a->d_model, .worker = worker,
        .moe_input = w->experts.input, .topk_ids = s->p->ids + at, .topk_weights = s->p->weights + at,
        .expert_outputs = w->experts.outputs, .routed_output = w->experts.routed, .block_output = w->experts.routed,
    };
    exf_code rc = o->block(o->self, &b, err);
    if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d, sequence %zu, block at position %d: ", s->layer, sequence, position);
    return rc;
}

static exf_code run_block(const step *s, size_t sequence, int position, int n, exf_workspace *w, int worker, exf_err *err)
{
    const exf_pass *p = s->p;
    const exf_architecture *a = &p->model->arch;
    size_t row = p->batch->span[sequence].offset + (size_t)position, h = (size_t)a->d_model;
    float *hidden = s->hidden + row * h;
    double start = exf_clock(), ran;
    norm_rows(w->experts.input, hidden, p->weights_now.w[EXF_W_FFN_NORM], n, a);
    if (s->moe_index < 0) {
        exf_dense_ffn_run(n, a, &p->weights_now, &w->experts);
        ran = exf_clock();
    } else {
        exf_experts_run(n, p->ids + row * (size_t)a->top_k, p->weights + row * (size_t)a->top_k, a, &p->weights_now, &w->experts);
        ran = exf_clock();
        exf_code rc = show_block(s, sequence, position, n, w, worker, err);
        if (rc != EXF_OK) return rc;
    }
    w->times.experts += ran - start;
    w->times.observe += exf_clock() - ran;
    return add_residual(hidden, w->experts.routed, (size_t)n * h, a->d_model, s->layer, sequence, position, err);
}

static exf_code feed_forward(void *self, size_t sequence, exf_workspace *w, int worker, exf_err *err)
{
    const step *s = self;
    int n = s->p->batch->span[sequence].n_tokens;
    exf_code rc = EXF_OK;
    for (int at = 0; rc == EXF_OK && at < n; at += EXF_MOE_BLOCK)
        rc = run_block(s, sequence, at, n - at < EXF_MOE_BLOCK ? n - at : EXF_MOE_BLOCK, w, worker, err);
    return rc;
}

exf_code exf_layer_step(exf_pass *p, const exf_lane *lane, float *hidden, int layer, int moe_index, exf_progress *progress, exf_err *err)
{
    exf_code rc;
    step s = {p, lane, hidden, layer, moe_index};
    const exf_observer *o = lane->observer;
    EXF_TRY(each_sequence(p, mix_and_route, &s, err));
    if (moe_index >= 0 && lane->rewriter) {
        exf_routes routes = {layer, moe_index, p->batch, p->model->arch.n_experts, p->model->arch.top_k, p->ids, p->weights};
        EXF_TRY(lane->rewriter->rewrite(lane->rewriter->self, &routes, err));
    }
    if (moe_index >= 0 && o && o->layer_begin) EXF_TRY(o->layer_begin(o->self, layer, moe_index, err));
    EXF_TRY(each_sequence(p, feed_forward, &s, err));
    if (moe_index >= 0 && o && o->layer_end) EXF_TRY(o->layer_end(o->self, layer, moe_index, progress, err));
out:
    return rc;
}

/* ---- the head ---------------------------------------------------------------- */

typedef struct {
    exf_pass *p;
    const exf_observer *observer;
    const float *hidden, *norm, *head;
} head_step;

static exf_code head_of_sequence(void *self, size_t sequence, exf_workspace *w, int worker, exf_err *err)
{
    const head_step *s = self;
    const exf_architecture *a = &s->p->model->arch;
    const exf_span *span = &s->p->batch->span[sequence];
    float *normed = w->head, *logits = w->head + (size_t)EXF_HEAD_ROWS * (size_t)a->d_model;
    double start = exf_clock();
    exf_code rc = EXF_OK;
    for (int at = 0; rc == EXF_OK && at < span->n_tokens; at += EXF_HEAD_ROWS) {
        int n = span->n_tokens - at < EXF_HEAD_ROWS ? span->n_tokens - at : EXF_HEAD_ROWS;
        size_t row = span->offset + (size_t)at;
        norm_rows(normed, s->hidden + row * (size_t)a->d_model, s->norm, n, a);
        exf_gemm_xwt_cpu(logits, a->vocab, normed, a->d_model, s->head, a->d_model, n, a->vocab, a->d_model, 1, 0);
        exf_logits_block b = {sequence, row, at, n, a->vocab, worker, logits};
        rc = s->observer->logits(s->observer->self, &b, err);
    }
    w->times.head += exf_clock() - start;
    return rc;
}

exf_code exf_head_step(exf_pass *p, const exf_lane *lanes, size_t n_lanes, exf_err *err)
{
    exf_code rc;
    float *norm = NULL, *head = NULL;
    EXF_TRY(exf_mem_new(&norm, (size_t)p->model->arch.d_model, sizeof(float), "final norm", err));
    EXF_TRY(exf_mem_new(&head, exf_model_count(p->model, EXF_W_HEAD), sizeof(float), "head", err));
    EXF_TRY(exf_model_read(p->model, EXF_W_FINAL_NORM, 0, 0, norm, err));
    EXF_TRY(exf_model_read(p->model, EXF_W_HEAD, 0, 0, head, err));
    for (size_t i = 0; i < n_lanes; i++) {
        head_step s = {p, lanes[i].observer, p->hidden[i], norm, head};
        if (s.observer && s.observer->logits) EXF_TRY(each_sequence(p, head_of_sequence, &s, err));
    }
out:
    exf_mem_free(norm);
    exf_mem_free(head);
    return rc;
}
