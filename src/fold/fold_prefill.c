/* fold_prefill.c - applies P, top, skip and random to prefill positions. */
#include "fold/fold_rewriter_internal.h"

#include "base/hash.h"
#include "base/parallel.h"
#include "kernels/fold/fold_cpu.h"

#include <math.h>

enum { ROWS = 64 }; /* that are rewritten at a time */

/* Applies the kinds that exfold/fold.h does not have: keeps the P routes of largest rank, then renormalises (top), or folds each
 * omitted route into a kept one drawn by (seed, layer, slot of the run) (random).  Vector projectors keep the routes' weights
 * and add the rest afterwards (fold_vectors.c). */
static void keep_ranked(const exf_fold_rewriter *f, const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                        int layer, size_t first_slot)
{
    int keep = f->v->prefill_options.keep;
    for (int row = 0; row < in->rows; row++, first_slot += (size_t)in->width) {
        exf_fold_ranked r;
        int32_t *ids = (int32_t *)out->ids + row * out->width;
        float *w = (float *)out->weights + row * out->width, all = 0, rest = 0;
        exf_fold_rank_row(&r, in, row, t, f->v->prefill_options.rank);
        int kept = r.n < keep ? r.n : keep;
        for (int i = 0; i < r.n; i++) all += r.w[i];
        for (int i = 0; i < kept; i++) rest += r.w[i];
        float factor = f->v->prefill == EXF_PREFILL_TOP && f->v->renormalise && rest > 0 ? all / rest : 1.0f;
        for (int i = 0; i < out->width; i++) {
            ids[i] = i < kept ? r.id[i] : -1;
            w[i] = i < kept ? r.w[i] * factor : 0.0f;
        }
        for (int j = kept; f->v->prefill == EXF_PREFILL_RANDOM && j < r.n; j++) {
            int to = (int)exf_rng_below((uint64_t)kept, (uint64_t)f->v->seed, (uint64_t)layer, first_slot + (uint64_t)r.slot[j]);
            size_t cell = (size_t)r.id[j] * (size_t)t->n_experts + (size_t)r.id[to];
            if (t->loss[cell] < EXF_LOSS_NEVER) w[to] += r.w[j] * t->coeff[cell];
        }
    }
}

exf_fold_budget_options exf_fold_budget_of(const exf_fold_rewriter *f, int index)
{
    exf_fold_budget_options o = {.ridge = f->v->prefill_options.ridge};
    double lambda = f->lambda;
    if (f->v->budget == EXF_BUDGET_TOP_P) {
        o.rule = EXF_FOLD_BUDGET_TOP_P;
        o.share = lambda > 0 ? (float)fmin(lambda, 1) : 1e-30f;
    } else {
        o.penalty = (float)fmin(lambda / f->budget->scale[index], (double)EXF_FOLD_NEVER);
    }
    return o;
}

double exf_fold_skip_factor(const exf_fold_rewriter *f, int index)
{
    return f->budget ? f->budget->scale[index] / f->mean_scale : 1;
}

double exf_fold_skip_threshold(const exf_fold_rewriter *f)
{
    return f->v->skip_budget ? f->lambda : f->v->tau;
}

/* Drops routes below the threshold, but for the first `keep`; where keep is 0 a token whose routes are all below runs none. */
static void skip_routes(const exf_fold_rewriter *f, const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                        int index)
{
    double factor = exf_fold_skip_factor(f, index), tau = exf_fold_skip_threshold(f);
    for (int row = 0; row < in->rows; row++) {
        exf_fold_ranked r;
        int32_t *ids = (int32_t *)out->ids + row * out->width;
        float *w = (float *)out->weights + row * out->width;
        double all = 0;
        exf_fold_rank_row(&r, in, row, t, EXF_FOLD_BY_SCORE);
        for (int i = 0; i < r.n; i++) all += (double)r.w[i];
        for (int i = 0; i < out->width; i++) {
            int runs = i < r.n && (i < f->v->prefill_options.keep || exf_fold_reaches(factor, (double)r.w[i], tau, all));
            ids[i] = runs ? r.id[i] : -1;
            w[i] = runs ? r.w[i] : 0.0f;
        }
    }
}

static exf_fold_status rewrite_rows(const exf_fold_rewriter *f, const exf_routes *r, size_t first, int rows,
                                    const exf_fold_tables *t, int index)
{
    int32_t ids[ROWS * EXF_FOLD_MAX_K];
    float weights[ROWS * EXF_FOLD_MAX_K];
    size_t at = first * (size_t)r->top_k;
    exf_fold_routes in = {.ids = r->ids + at, .weights = r->weights + at, .rows = rows, .width = r->top_k};
    exf_fold_routes out = {.ids = ids, .weights = weights, .rows = rows, .width = r->top_k};
    exf_fold_budget_options budget;
    exf_fold_status status = EXF_FOLD_OK;
    if (f->v->prefill_norms) in.norms = f->norms + at;
    if (f->v->prefill == EXF_PREFILL_SKIP) {
        skip_routes(f, &in, &out, t, index);
    } else if (f->v->budget) { /* as many routes of each row as the variant's budget says */
        budget = exf_fold_budget_of(f, index);
        status = exf_fold_prefill_budget_cpu(&in, &out, NULL, t, &budget);
    } else if (f->v->prefill != EXF_PREFILL_FOLD || exf_variant_wants_vectors(f->v)) {
        keep_ranked(f, &in, &out, t, r->layer, at + f->schedule->first_row * (size_t)r->top_k);
    } else if (f->v->prefill_projector->apply == EXF_APPLY_JOINTLY) {
        status = exf_fold_prefill_joint_cpu(&in, &out, t, &f->v->prefill_options);
    } else {
        status = exf_fold_prefill_cpu(&in, &out, t, &f->v->prefill_options);
    }
    for (int i = 0; status == EXF_FOLD_OK && i < rows * r->top_k; i++) { /* a slot without an expert weighs nothing */
        r->ids[at + (size_t)i] = ids[i];
        r->weights[at + (size_t)i] = ids[i] >= 0 ? weights[i] : 0.0f;
    }
    return status;
}

exf_code exf_fold_prefill_routes(const exf_fold_rewriter *f, const exf_routes *r, int index, exf_err *err)
{
    const exf_fold_tables t = exf_fold_rewriter_tables(f, index, f->prefill_coeff, f->prefill_loss);
    exf_loop loop = EXF_LOOP;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(r->batch->n_sequences, f->schedule->threads))
    for (size_t i = 0; i < r->batch->n_sequences; i++) {
        const exf_span *span = &r->batch->span[i];
        int n = exf_decode_schedule_prefill(f->schedule, span->n_tokens);
        exf_fold_status status = EXF_FOLD_OK;
        exf_err e;
        if (!exf_loop_takes(&loop, i)) continue;
        for (int at = 0; status == EXF_FOLD_OK && at < n; at += ROWS)
            status = rewrite_rows(f, r, span->offset + (size_t)at, n - at < ROWS ? n - at : ROWS, &t, index);
        if (exf_fold_failed(f, status, EXF_FOLD_PHASE_PREFILL, &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    return exf_loop_end(&loop, err);
}
