/* fold_choices.c - folds that choose for each token: budgets, skipping, stand-ins by the router. */
#include "fold/fold_rewriter_internal.h"

#include "base/mem.h"
#include "kernels/fold/fold_cpu.h"
#include "kernels/moe/router.h"

#include <string.h>

/* ---- what the tables must have -------------------------------------------------------------- */

/* Finds the budget of that rule; a layer's factor is the same in all of a rule's. */
static exf_code open_budget(exf_fold_rewriter *f, const char *rule, exf_err *err)
{
    int asked = f->v->prefill_options.keep;
    double sum = 0;
    for (int i = 0; i < f->t->n_budgets; i++) {
        const exf_budget *b = &f->t->budget[i];
        if (strcmp(b->rule, rule) == 0 && (f->v->prefill == EXF_PREFILL_SKIP || b->budget == asked)) f->budget = b;
    }
    if (!f->budget && f->v->prefill == EXF_PREFILL_SKIP)
        return exf_fail(err, EXF_USAGE,
                        "variant \"%s\": the tables hold no budget with the sensitivity \"%s\"; add one to budgets and solve them "
                        "again (exfold-solve)",
                        f->v->name, rule);
    if (!f->budget)
        return exf_fail(err, EXF_USAGE,
                        "variant \"%s\": the tables hold no budget of %d experts per token by \"%s\"; add %d to budgets and solve "
                        "them again (exfold-solve)",
                        f->v->name, asked, rule, asked);
    for (int l = 0; l < f->t->n_layers; l++) sum += f->budget->scale[l];
    f->mean_scale = sum / f->t->n_layers;
    return EXF_OK;
}

exf_code exf_fold_choices_open(exf_fold_rewriter *f, exf_err *err)
{
    const char *rule = exf_variant_budget_rule(f->v);
    size_t n;
    exf_code rc = EXF_OK;
    if (rule) EXF_TRY(open_budget(f, rule, err));
    if (!f->v->by_router) return EXF_OK;
    EXF_TRY(exf_mem_mul(&n, (size_t)f->schedule->widest * (size_t)f->a->n_experts, 2 * (size_t)f->schedule->threads, "scores",
                        err));
    EXF_TRY(exf_mem_new(&f->scores, n, sizeof *f->scores, "scores", err));
out:
    return rc;
}

/* ---- prefill -------------------------------------------------------------------------------- */

/* Returns x as an option that must not be more than `most`, nor less than the least float32. */
static float option(double x, double most)
{
    return (float)(x < most ? x : most);
}

exf_fold_status exf_fold_by_budget(const exf_fold_rewriter *f, const exf_fold_routes *in, const exf_fold_routes *out,
                                   const exf_fold_tables *t, int index)
{
    exf_fold_budget_options o = {.ridge = f->v->prefill_options.ridge};
    double lambda = f->budget->lambda;
    if (f->v->budget == EXF_BUDGET_TOP_P) {
        o.rule = EXF_FOLD_BUDGET_TOP_P;
        o.share = lambda > 0 ? option(lambda, 1) : 1e-30f;
    } else {
        o.penalty = option(lambda / f->budget->scale[index], EXF_FOLD_NEVER);
    }
    return exf_fold_prefill_budget_cpu(in, out, NULL, t, &o);
}

void exf_fold_skip(const exf_fold_rewriter *f, const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                   int index)
{
    double factor = f->budget ? f->budget->scale[index] / f->mean_scale : 1;
    for (int row = 0; row < in->rows; row++) {
        exf_fold_ranked r;
        int32_t *ids = (int32_t *)out->ids + row * out->width;
        float *w = (float *)out->weights + row * out->width;
        exf_fold_rank_row(&r, in, row, t, EXF_FOLD_BY_SCORE);
        for (int i = 0; i < out->width; i++) {
            int runs = i < r.n && (i < f->v->prefill_options.keep || factor * (double)r.w[i] >= f->v->tau);
            ids[i] = runs ? r.id[i] : -1;
            w[i] = runs ? r.w[i] : 0.0f;
        }
    }
}

/* ---- decode --------------------------------------------------------------------------------- */

/* Fills the scores of a step: choice [rows, E] and gate [rows, E]. */
static exf_fold_scores scores_of(const exf_fold_rewriter *f, const exf_routes *r, int rows, const size_t *row, int worker)
{
    static const exf_router_score kind[] = {EXF_ROUTER_SOFTMAX, EXF_ROUTER_SIGMOID, EXF_ROUTER_SQRT_SOFTPLUS};
    size_t e = (size_t)r->n_experts, room = (size_t)f->schedule->widest * e;
    float *choice = f->scores + 2 * (size_t)worker * room, *gate = choice + room;
    double score[EXF_FOLD_MAX_E];
    for (int i = 0; i < rows; i++) {
        exf_router_scores_cpu(score, r->logits + row[i] * e, kind[f->a->router.score], r->n_experts);
        for (size_t j = 0; j < e; j++) {
            gate[(size_t)i * e + j] = (float)score[j];
            choice[(size_t)i * e + j] = (float)(r->bias ? score[j] + (double)r->bias[j] : score[j]);
        }
    }
    return (exf_fold_scores){.choice = choice, .gate = gate, .type = EXF_FOLD_F32};
}

exf_fold_status exf_fold_by_router(const exf_fold_rewriter *f, const exf_routes *r, const exf_fold_routes *io, const size_t *row,
                                   const exf_fold_tables *t, int index, int worker)
{
    const exf_fold_decode_options *d = &f->v->decode_options;
    const int32_t *members = f->pool ? f->pool->members + (size_t)index * (size_t)f->pool->size : NULL;
    exf_fold_stand_in_options o = {
        .pool = d->pool, .importance = d->importance, .weights = f->v->stand_in_weights, .ridge = d->ridge};
    exf_fold_scores s = scores_of(f, r, io->rows, row, worker);
    if (o.weights == EXF_FOLD_STAND_INS_ROUTE && !f->a->router.renormalise) o.weights = EXF_FOLD_STAND_INS_GATE;
    return exf_fold_decode_stand_ins_cpu(io, &s, members, t, &o);
}

void exf_fold_static_targets(const exf_fold_rewriter *f, const exf_fold_tables *t, int index, int16_t *target)
{
    const int32_t *members = f->pool->members + (size_t)index * (size_t)f->pool->size;
    for (int e = 0; e < t->n_experts; e++) {
        const float *cosine = t->cosine + (size_t)e * (size_t)t->n_experts;
        int best = members[0], inside = 0;
        for (int i = 0; i < f->pool->size; i++) {
            inside |= members[i] == e;
            if (exf_fold_likeness(cosine[members[i]]) > exf_fold_likeness(cosine[best])) best = members[i];
        }
        target[e] = (int16_t)(inside ? -1 : best);
    }
}
