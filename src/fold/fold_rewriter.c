/* fold_rewriter.c - the rewriter of a variant: finds what it needs in the tables, rewrites routes layer by layer
 * (fold_prefill.c, fold_decode.c, fold_vectors.c), and counts the experts that run. */
#include "fold/fold_rewriter_internal.h"

#include "base/mem.h"

#include <string.h>

/* ---- tables that a variant needs ------------------------------------------------------- */

static exf_code refuse_lack(const exf_fold_rewriter *f, const char *what, exf_err *err)
{
    return exf_fail(err, EXF_USAGE, "variant \"%s\": the tables hold no %s", f->v->name, what);
}

/* Finds S and L of a scalar projector; *coeff NULL: the pairs' own.  frobenius: L by that norm. */
static exf_code open_scalars(const exf_fold_rewriter *f, const exf_projector *p, int frobenius, float **coeff, const float **loss,
                             exf_err *err)
{
    size_t e = (size_t)f->t->shape.n_experts, cells = e * e;
    const exf_shared_scalar *shared = NULL;
    *loss = frobenius ? f->t->frobenius : f->t->loss;
    if (!*loss)
        return refuse_lack(f, "losses by Frobenius norm, which came with version 4; solve the statistics again (exfold-solve)",
                           err);
    if (p->apply != EXF_APPLY_SHARED) return EXF_OK;
    for (int i = 0; i < f->t->n_shared; i++)
        if (strcmp(f->t->shared[i].name, p->name) == 0) shared = &f->t->shared[i];
    if (!shared)
        return exf_fail(err, EXF_USAGE,
                        "variant \"%s\": the tables hold no %s scalar; add %s to calibrate.projectors and solve them again",
                        f->v->name, p->name, p->name);
    exf_code rc = exf_mem_new(coeff, (size_t)f->t->n_layers * cells, sizeof **coeff, "shared scalars", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < (size_t)f->t->n_layers * cells; i++)
        (*coeff)[i] = i % cells % e == i % cells / e ? 1.0f : shared->loss[i] < EXF_LOSS_NEVER ? shared->scalar[i / cells] : 0.0f;
    *loss = shared->loss;
    return EXF_OK;
}

static exf_code open_pool(exf_fold_rewriter *f, exf_err *err)
{
    const char *by = exf_pool_criteria[f->v->pool_by];
    for (int i = 0; i < f->t->n_pools; i++) {
        const exf_static_pool *p = &f->t->pool[i];
        const char *its = p->by[0] ? p->by : exf_pool_criteria[EXF_POOL_BY_NORM];
        if (p->size == f->v->decode_options.pool && strcmp(its, by) == 0) f->pool = p;
    }
    if (f->pool) return EXF_OK;
    if (f->v->pool_by != EXF_POOL_BY_NORM)
        return exf_fail(err, EXF_USAGE,
                        "variant \"%s\": the tables hold no static pool of %d by %s; add {size: %d, by: %s} to pools and solve "
                        "them again (exfold-solve)",
                        f->v->name, f->v->decode_options.pool, by, f->v->decode_options.pool, by);
    return exf_fail(err, EXF_USAGE, "variant \"%s\": the tables hold no static pool of %d; add %d to pools and solve them again",
                    f->v->name, f->v->decode_options.pool, f->v->decode_options.pool);
}

/* Marks the D experts in each layer that have most of the criterion as retained, ties to the lower number. */
static exf_code choose_survivors(exf_fold_rewriter *f, exf_err *err)
{
    size_t e = (size_t)f->t->shape.n_experts;
    exf_expert_rank by = {f->v->pool_by, f->v->bare_router};
    exf_code rc = exf_tables_rank_check(f->t, by, err);
    if (rc != EXF_OK) {
        exf_err_prefix(err, "variant \"%s\": ", f->v->name);
        return rc;
    }
    rc = exf_mem_new(&f->retained, (size_t)f->t->n_layers * e, sizeof *f->retained, "retained experts", err);
    if (rc != EXF_OK) return rc;
    for (size_t l = 0; l < (size_t)f->t->n_layers; l++)
        for (size_t i = 0; i < e; i++) {
            double mine = exf_tables_score(f->t, by, l, i);
            int better = 0;
            for (size_t j = 0; j < e; j++) {
                double theirs = exf_tables_score(f->t, by, l, j);
                better += theirs > mine || (theirs == mine && j < i);
            }
            f->retained[l * e + i] = better < f->v->decode_options.pool;
        }
    return EXF_OK;
}

/* Finds the budget of that rule; a layer's factor is the same in all of a rule's. */
static exf_code open_budget(exf_fold_rewriter *f, const char *rule, exf_err *err)
{
    int skips = f->v->prefill == EXF_PREFILL_SKIP, any = skips && !f->v->skip_budget; /* any of the rule has its factors */
    int asked = skips ? f->v->skip_budget : f->v->prefill_options.keep;
    double sum = 0;
    for (int i = 0; i < f->t->n_budgets; i++) {
        const exf_budget *b = &f->t->budget[i];
        if (strcmp(b->rule, rule) == 0 && (any || b->budget == asked)) f->budget = b;
    }
    if (!f->budget && any)
        return exf_fail(err, EXF_USAGE,
                        "variant \"%s\": the tables hold no budget with the sensitivity \"%s\"; add one to budgets and solve them "
                        "again (exfold-solve)",
                        f->v->name, rule);
    if (!f->budget)
        return exf_fail(err, EXF_USAGE,
                        "variant \"%s\": the tables hold no budget of %d experts per token by \"%s\"; add %d to budgets and solve "
                        "them again (exfold-solve)",
                        f->v->name, asked, rule, asked);
    exf_budget_threshold found = exf_budget_threshold_of(f->budget, f->v->prefill_norms);
    if (!any && found.mean == 0)
        return exf_fail(err, EXF_USAGE,
                        "variant \"%s\": the budget of %d experts per token by \"%s\" has no lambda by predicted norms; calibrate "
                        "again with calibrate.route_sample above 0",
                        f->v->name, asked, rule);
    f->lambda = found.lambda;
    for (int l = 0; l < f->t->n_layers; l++) sum += f->budget->scale[l];
    f->mean_scale = strcmp(rule, exf_budget_rules[EXF_RULE_SKIP]) == 0 ? 1 : sum / f->t->n_layers;
    return EXF_OK;
}

static exf_code open_variant(exf_fold_rewriter *f, exf_err *err)
{
    exf_code rc;
    const exf_variant *v = f->v;
    const char *rule = exf_variant_budget_rule(v);
    int decodes = v->decode != EXF_DECODE_NONE && v->decode != EXF_DECODE_REAP;
    int joint = (v->prefill != EXF_PREFILL_NONE && v->prefill_projector->apply == EXF_APPLY_JOINTLY) ||
                v->decode_projector->apply == EXF_APPLY_JOINTLY;
    int energy = v->decode_options.importance == EXF_FOLD_IMPORTANCE_ENERGY || v->budget == EXF_BUDGET_TOP_P;
    size_t slots;
    EXF_TRY(exf_variant_check(v, f->a->n_experts, f->a->top_k, err));
    if (exf_variant_wants_vectors(v) && decodes && !f->schedule->prefill_tokens) /* the fold replaces the slots that vectors read */
        return exf_fail(err, EXF_USAGE,
                        "variant \"%s\": a diagonal or low-rank projector with a decode kind needs validate.prefill_tokens, so "
                        "that no position is both", v->name);
    if (v->by_router && f->a->router.expert_scaled && v->stand_in_weights != EXF_FOLD_STAND_INS_JOINT)
        return exf_fail(err, EXF_USAGE,
                        "variant \"%s\": this model's router multiplies weights by a factor of the expert, which weights of "
                        "stand-ins that are made of its scores would lack; give weights=joint", v->name);
    if (v->only_layer && f->table_of[v->only_layer - 1] < 0)
        return exf_fail(err, EXF_USAGE, "variant \"%s\": the tables have no layer %d", v->name, v->only_layer - 1);
    EXF_TRY(open_scalars(f, v->prefill_projector, v->prefill_frobenius, &f->prefill_coeff, &f->prefill_loss, err));
    EXF_TRY(open_scalars(f, v->decode_projector, v->decode_frobenius, &f->decode_coeff, &f->decode_loss, err));
    if ((joint && !f->t->cosine) || ((joint || energy) && !f->t->rms))
        return refuse_lack(f, "cosine and rms, which came with version 2", err);
    if (v->decode == EXF_DECODE_STATIC) EXF_TRY(open_pool(f, err));
    if (rule) EXF_TRY(open_budget(f, rule, err));
    if (v->by_router) {
        EXF_TRY(exf_mem_mul(&slots, (size_t)f->schedule->widest * (size_t)f->a->n_experts, 2 * (size_t)f->schedule->threads,
                            "scores", err));
        EXF_TRY(exf_mem_new(&f->scores, slots, sizeof *f->scores, "scores", err));
    }
    if (v->decode == EXF_DECODE_REAP) EXF_TRY(choose_survivors(f, err));
    if (v->decode == EXF_DECODE_SERE && !f->t->similarity) return refuse_lack(f, "similarity, which came with version 2", err);
    if (v->decode == EXF_DECODE_SERE && !exf_tables_of_common_input(f->t))
        return exf_fail(err, EXF_USAGE,
                        "variant \"%s\": SERE's similarity is of all experts on the same tokens, and the tables are of co-routed "
                        "tokens; calibrate with --set calibrate.pairs=common_input for it", v->name);
    if (exf_variant_wants_vectors(v)) EXF_TRY(exf_fold_vectors_open(f, err));
    if (exf_variant_wants_norms(v)) EXF_TRY(exf_fold_norms_open(f, err));
    if (!decodes) return EXF_OK;
    EXF_TRY(exf_mem_mul(&slots, 2 * f->schedule->first[f->schedule->n_steps], (size_t)f->a->top_k, "decode steps", err));
    EXF_TRY(exf_mem_new(&f->ids, slots, sizeof *f->ids, "decode steps", err));
    EXF_TRY(exf_mem_new(&f->weights, slots / 2, sizeof *f->weights, "decode steps", err));
    if (v->decode_norms) EXF_TRY(exf_mem_new(&f->step_norms, slots / 2, sizeof *f->step_norms, "decode steps", err));
out:
    return rc;
}

/* ---- the rewriter ------------------------------------------------------------------------ */

static const unsigned char *retained_experts(void *self, int moe_index)
{
    const exf_fold_rewriter *f = self;
    int index = f->table_of[f->layer_of[moe_index]];
    return index < 0 ? NULL : f->retained + (size_t)index * (size_t)f->t->shape.n_experts;
}

/* Marks the experts of n slots; returns how many were not marked before. */
static uint64_t mark_experts(unsigned char *seen, const int32_t *ids, size_t n)
{
    uint64_t fresh = 0;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && !seen[ids[i]]) {
            seen[ids[i]] = 1;
            fresh++;
        }
    return fresh;
}

/* Adds the distinct experts of each token, and of each decode step. */
static void count_usage(exf_fold_rewriter *f, const exf_routes *r)
{
    uint64_t executed = 0;
    size_t k = (size_t)r->top_k;
    for (size_t row = 0; row < r->batch->n_tokens; row++) {
        const int32_t *ids = r->ids + row * k;
        executed += mark_experts(f->seen, ids, k);
        for (size_t i = 0; i < k; i++)
            if (ids[i] >= 0) f->seen[ids[i]] = 0;
    }
    for (int i = 0; i < f->n_counted; i++) {
        const exf_decode_schedule *s = &f->counted[i];
        exf_expert_usage *c = &f->usage[i * f->n_moe_layers + r->moe_index];
        c->tokens += r->batch->n_tokens;
        c->executed += executed;
        for (size_t step = 0; step < s->n_steps; step++) {
            for (size_t at = s->first[step]; at < s->first[step + 1]; at++)
                c->distinct += mark_experts(f->seen, r->ids + s->row[at] * k, k);
            memset(f->seen, 0, (size_t)r->n_experts * sizeof *f->seen);
            c->steps++;
        }
    }
}

static exf_code rewrite_routes(void *self, exf_routes *r, exf_err *err)
{
    exf_fold_rewriter *f = self;
    int index = f->table_of[r->layer];
    exf_code rc = EXF_OK;
    if (f->v && index >= 0 && (!r->by_token || f->v->folds_hashed)) {
        int layer = f->v->only_layer - 1;
        if (f->v->prefill != EXF_PREFILL_NONE && (layer < 0 || layer == r->layer))
            EXF_TRY(exf_fold_prefill_routes(f, r, index, err));
        if (f->v->decode != EXF_DECODE_NONE && f->v->decode != EXF_DECODE_REAP) EXF_TRY(exf_fold_decode_routes(f, r, index, err));
    }
    if (!r->probe) count_usage(f, r);
out:
    return rc;
}

/* Implements exf_rewriter.device_open. */
static exf_code open_device(void *self, const struct exf_backend *b, exf_err *err)
{
    exf_fold_rewriter *f = self;
    exf_code rc = EXF_OK;
    if (f->norms && !f->rewriter.device_rewrite)
        return exf_fail(err, EXF_USAGE, "variant \"%s\": folds by predicted norms on the CPU alone; set runtime.backend to cpu",
                        f->v->name);
    if (f->rewriter.device_rewrite) EXF_TRY(exf_fold_routes_open(f, b, err));
    if (f->vector_of) EXF_TRY(exf_fold_device_open(f, b, err));
out:
    return rc;
}

exf_code exf_fold_rewriter_new(exf_fold_rewriter **out, const exf_variant *variant, const exf_tables *t, const exf_architecture *a,
                               const exf_decode_schedule *schedule, exf_err *err)
{
    exf_code rc;
    exf_fold_rewriter *f = NULL;
    int n = 0;
    *out = NULL;
    EXF_TRY(exf_mem_new(&f, 1, sizeof *f, "fold rewriter", err));
    f->v = variant;
    f->t = t;
    f->a = a;
    f->schedule = schedule;
    for (int l = 0; l < EXF_MAX_LAYERS; l++) f->table_of[l] = -1;
    for (int i = 0; t && i < t->n_layers; i++) {
        int l = t->layer_number[i];
        if (l >= a->n_layers || !a->is_moe[l]) {
            rc = exf_fail(err, EXF_MODEL, "the tables have a layer %d; the model has %d layers and %s", l, a->n_layers,
                          l < a->n_layers ? "that one is dense" : "none of that number");
            goto out;
        }
        f->table_of[l] = i;
    }
    for (int l = 0; l < a->n_layers; l++)
        if (a->is_moe[l]) f->layer_of[n++] = l;
    f->n_moe_layers = n;
    EXF_TRY(exf_fold_rewriter_count(f, schedule, 1, err));
    EXF_TRY(exf_mem_new(&f->seen, (size_t)a->n_experts, sizeof *f->seen, "expert usage", err));
    f->rewriter = (exf_rewriter){.self = f, .rewrite = rewrite_routes};
    if (variant) EXF_TRY(open_variant(f, err));
    f->rewriter.wants_logits = f->scores != NULL;
    if (f->retained) f->rewriter.retained_experts = retained_experts;
    f->rewriter.device_open = open_device;
    if (f->norms) f->rewriter.routed = exf_fold_norms_predict;
    if (exf_fold_runs_on_device(f)) {
        f->rewriter.device_rewrite = exf_fold_routes_rewrite;
        f->rewriter.device_bytes = exf_fold_routes_bytes(f);
    }
    if (f->vector_of) {
        f->rewriter.correct = exf_fold_vectors_correct;
        f->rewriter.device_bytes += exf_fold_device_bytes(f);
    }
out:
    if (rc != EXF_OK)
        exf_fold_rewriter_free(f);
    else
        *out = f;
    return rc;
}

const exf_rewriter *exf_fold_rewriter_callbacks(exf_fold_rewriter *f)
{
    return &f->rewriter;
}

exf_code exf_fold_rewriter_count(exf_fold_rewriter *f, const exf_decode_schedule *schedules, int n, exf_err *err)
{
    exf_mem_free(f->usage);
    f->counted = schedules;
    f->n_counted = n;
    if (f->rewriter.device_rewrite) f->rewriter.device_bytes = exf_fold_routes_bytes(f);
    return exf_mem_new(&f->usage, (size_t)n * (size_t)f->n_moe_layers, sizeof *f->usage, "expert usage", err);
}

exf_code exf_fold_rewriter_check(const exf_fold_rewriter *f, exf_err *err)
{
    const uint64_t *bad = f->device_fold.bad;
    if (!bad || *bad == UINT64_MAX) return EXF_OK;
    return exf_fail(err, EXF_NUMERIC, "variant \"%s\": token %llu: the norm head predicts no finite norm above 0", f->v->name,
                    (unsigned long long)*bad);
}

const exf_expert_usage *exf_fold_rewriter_usage(exf_fold_rewriter *f)
{
    exf_fold_routes_collect(f);
    return f->usage;
}

void exf_fold_rewriter_set_usage(exf_fold_rewriter *f, int i, const exf_expert_usage *usage, int n)
{
    memcpy(f->usage + i * f->n_moe_layers, usage, (size_t)n * sizeof *usage);
}

void exf_fold_rewriter_free(exf_fold_rewriter *f)
{
    if (!f) return;
    exf_mem_free(f->prefill_coeff);
    exf_mem_free(f->decode_coeff);
    exf_mem_free(f->retained);
    exf_mem_free(f->scores);
    exf_mem_free(f->routed_ids);
    exf_mem_free(f->norms);
    exf_mem_free(f->step_norms);
    exf_device_corrections_free(&f->on_device);
    exf_fold_routes_close(f);
    exf_mem_free(f->vector_of);
    exf_mem_free(f->basis);
    exf_mem_free(f->usage);
    exf_mem_free(f->ids);
    exf_mem_free(f->weights);
    exf_mem_free(f->seen);
    exf_mem_free(f);
}
