/* pass_head.c - see pass.h. */
#include "pass/pass.h"

#include "pass/memory_plan.h"
#include "base/thread_pool.h"
#include "pass/moe_layer.h"

static exf_code show(const exf_pass *p, size_t lane, exf_workspace *w, exf_logits_block *b, const float *logits, exf_err *err)
{
    const exf_observer *o = p->lanes[lane].observer;
    float *mirror = w->mirror;
    exf_code rc;
    if (w->b->gpu && o->device_logits) {
        exf_device_logits device = {b->sequence, b->row, b->position, b->n_tokens,
                                    b->vocab,    w->q,   logits,      p->tokens_device + b->row + 1};
        return o->device_logits(o->self, &device, err);
    }
    EXF_TRY(exf_visible(w, logits, (size_t)b->n_tokens * (size_t)b->vocab, &mirror, &b->logits, err));
    rc = o->logits(o->self, b, err);
out:
    return rc;
}

static exf_code head_of_rows(exf_pass *p, size_t lane, size_t sequence, int at, int n, int worker, exf_err *err)
{
    exf_workspace *w = &p->space[worker];
    const exf_architecture *a = &p->model->arch;
    const exf_layer_weights *lw = &p->weights_now;
    exf_arena arena = {w->floats, 0};
    exf_head_arrays h;
    size_t row = p->batch->span[sequence].offset + (size_t)at;
    exf_logits_block b = {sequence, row, at, n, a->vocab, worker, NULL};
    double start = exf_clock();
    exf_stage_begin(w->clock, w->q);
    exf_head_carve(&h, &arena, w->b, a);
    exf_residual_site site = exf_residual_site_of(lw, EXF_W_HEAD_MIX, EXF_W_HEAD_MIX_BASE, EXF_W_HEAD_MIX_SCALE);
    const float *u = exf_residual_collapse(w->b, w->q, a, &site, exf_hidden_rows(&p->hidden, lane, row, (size_t)n, w->q), n, h.u);
    w->b->rmsnorm(w->q, h.normed, a->d_model, u, a->d_model, lw->w[EXF_W_FINAL_NORM], n, a->d_model, a->norm_eps);
    w->b->gemm_xwt(w->q, h.logits, a->vocab, exf_f32(h.normed), a->d_model, exf_matrix_of(lw, EXF_W_HEAD), a->d_model, n, a->vocab,
                   a->d_model, 1, 0);
    w->times.flops += 2.0 * n * a->vocab * a->d_model;
    double ran = exf_clock();
    exf_add_time(w, &w->times.head, ran - start);
    exf_stage_end(w->clock, w->q, &w->times.head, -1, 0);
    exf_stage_begin(w->clock, w->q);
    exf_code rc = show(p, lane, w, &b, h.logits, err);
    exf_stage_end(w->clock, w->q, &w->times.observe, -1, 0);
    exf_progress_add(n);
    exf_add_time(w, &w->times.observe, exf_clock() - ran);
    return rc;
}

static exf_code head_of_sequence(void *self, size_t sequence, int worker, exf_err *err)
{
    exf_pass *p = self;
    int n = p->batch->span[sequence].n_tokens, rows = exf_head_rows(p->b);
    exf_code rc = EXF_OK;
    for (int at = 0; rc == EXF_OK && at < n; at += rows)
        for (size_t i = 0; rc == EXF_OK && i < p->n_lanes; i++)
            if (p->lanes[i].observer && p->lanes[i].observer->logits)
                rc = head_of_rows(p, i, sequence, at, n - at < rows ? n - at : rows, worker, err);
    return rc;
}

exf_code exf_head_step(exf_pass *p, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_pass_weights(p, EXF_LAYER_HEAD, err));
    EXF_TRY(exf_hidden_settle(&p->hidden, err));
    exf_progress_turn(EXF_WORK_HEAD);
    EXF_TRY(exf_parallel_for(p->batch->n_sequences, p->n_workers, head_of_sequence, p, err));
out:
    return rc;
}
