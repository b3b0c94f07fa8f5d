/* fold_prefill.c - applies P, top, skip and random to prefill positions. */
#include "fold/fold_rewriter_internal.h"

#include "base/hash.h"
#include "base/parallel.h"
#include "kernels/fold/fold_cpu.h"

#include <math.h>

enum { ROWS = 64 }; /* that are rewritten at a time */

/* Puts folded rows in place of the routes; a slot without an expert weighs nothing. */
static void put_back(const exf_fold_routes *out, int32_t *ids, float *weights)
{
    const int32_t *from = out->ids;
    const float *w = out->weights;
    for (int i = 0; i < out->rows * out->width; i++) {
        ids[i] = from[i];
        weights[i] = from[i] >= 0 ? w[i] : 0.0f;
    }
}

/* Returns the sum of all weights over that of the kept ones; 1 if weights are not renormalised. */
static float find_renormalisation(const exf_fold_rewriter *f, const exf_fold_ranked *r, int kept)
{
    float all = 0, rest = 0;
    for (int i = 0; i < r->n; i++) all += r->w[i];
    for (int i = 0; i < kept; i++) rest += r->w[i];
    return f->v->renormalise && rest > 0 ? all / rest : 1.0f;
}

/* Folds each omitted route into a kept one drawn by (seed, layer, slot of the run). */
static void fold_at_random(const exf_fold_rewriter *f, float *w, const exf_fold_ranked *r, int kept, const exf_fold_tables *t,
                           int layer, size_t first_slot)
{
    for (int j = kept; j < r->n; j++) {
        int to = (int)exf_rng_below((uint64_t)kept, (uint64_t)f->v->seed, (uint64_t)layer, first_slot + (uint64_t)r->slot[j]);
        size_t cell = (size_t)r->id[j] * (size_t)t->n_experts + (size_t)r->id[to];
        if (t->loss[cell] < EXF_LOSS_NEVER) w[to] += r->w[j] * t->coeff[cell];
    }
}

/* Applies the kinds that exfold/fold.h does not have: keeps the P routes of largest rank, then
 * renormalises (top) or folds the others in (random).  Vector projectors keep the routes' weights
 * and add the rest afterwards (fold_vectors.c). */
static void keep_ranked(const exf_fold_rewriter *f, const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                        int layer, size_t first_slot)
{
    int keep = f->v->prefill_options.keep;
    for (int row = 0; row < in->rows; row++) {
        exf_fold_ranked r;
        int32_t *ids = (int32_t *)out->ids + row * out->width;
        float *w = (float *)out->weights + row * out->width;
        exf_fold_rank_row(&r, in, row, t, f->v->prefill_options.rank);
        int kept = r.n < keep ? r.n : keep;
        float factor = f->v->prefill == EXF_PREFILL_TOP ? find_renormalisation(f, &r, kept) : 1.0f;
        for (int i = 0; i < out->width; i++) {
            ids[i] = i < kept ? r.id[i] : -1;
            w[i] = i < kept ? r.w[i] * factor : 0.0f;
        }
        if (f->v->prefill == EXF_PREFILL_RANDOM) fold_at_random(f, w, &r, kept, t, layer, first_slot + (size_t)(row * in->width));
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

/* Keeps as many routes of each row as the variant's budget says. */
static exf_fold_status fold_by_budget(const exf_fold_rewriter *f, const exf_fold_routes *in, const exf_fold_routes *out,
                                      const exf_fold_tables *t, int index)
{
    exf_fold_budget_options o = exf_fold_budget_of(f, index);
    return exf_fold_prefill_budget_cpu(in, out, NULL, t, &o);
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
    exf_fold_status status = EXF_FOLD_OK;
    if (f->v->prefill_norms) in.norms = f->norms + at;
    if (f->v->prefill == EXF_PREFILL_SKIP)
        skip_routes(f, &in, &out, t, index);
    else if (f->v->budget)
        status = fold_by_budget(f, &in, &out, t, index);
    else if (f->v->prefill != EXF_PREFILL_FOLD || exf_variant_wants_vectors(f->v))
        keep_ranked(f, &in, &out, t, r->layer, at + f->schedule->first_row * (size_t)r->top_k);
    else if (f->v->prefill_projector->apply == EXF_APPLY_JOINTLY)
        status = exf_fold_prefill_joint_cpu(&in, &out, t, &f->v->prefill_options);
    else
        status = exf_fold_prefill_cpu(&in, &out, t, &f->v->prefill_options);
    if (status == EXF_FOLD_OK) put_back(&out, r->ids + at, r->weights + at);
    return status;
}

typedef struct {
    const exf_fold_rewriter *f;
    const exf_routes *routes;
    exf_fold_tables tables;
    int index;
} prefill_job;

static exf_code rewrite_sequence(const prefill_job *j, size_t i, exf_err *err)
{
    const exf_span *span = &j->routes->batch->span[i];
    int n = exf_decode_schedule_prefill(j->f->schedule, span->n_tokens);
    exf_fold_status status = EXF_FOLD_OK;
    for (int at = 0; status == EXF_FOLD_OK && at < n; at += ROWS)
        status = rewrite_rows(j->f, j->routes, span->offset + (size_t)at, n - at < ROWS ? n - at : ROWS, &j->tables,
                              j->index);
    return exf_fold_failed(j->f, status, EXF_FOLD_PHASE_PREFILL, err);
}

exf_code exf_fold_prefill_routes(const exf_fold_rewriter *f, const exf_routes *r, int index, exf_err *err)
{
    prefill_job j = {f, r, exf_fold_rewriter_tables(f, index, f->prefill_coeff, f->prefill_loss), index};
    exf_loop loop = EXF_LOOP;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(r->batch->n_sequences, f->schedule->threads))
    for (size_t i = 0; i < r->batch->n_sequences; i++) {
        exf_err e;
        if (exf_loop_takes(&loop, i) && rewrite_sequence(&j, i, &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    return exf_loop_end(&loop, err);
}
