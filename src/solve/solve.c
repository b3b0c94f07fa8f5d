/* solve.c - see solve.h. */
#include "solve/solve.h"

#include "base/mem.h"
#include "base/stop.h"
#include "base/text.h"
#include "base/version.h"
#include "kernels/linear/blas_threads.h"
#include "solve/budgets.h"
#include "solve/measures.h"

#include <math.h>
#include <stdio.h>
#include <stdio.h>
#include <string.h>

exf_code exf_solve_norms(const exf_layer_statistics *s, int l, exf_tables *t, exf_err *err)
{
    size_t e = (size_t)s->n_experts;
    double *h = NULL;
    exf_code rc = exf_mem_new(&h, e, sizeof *h, "expert norms", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < e; i++)
        if (s->norm_count[i]) h[i] = exf_exact_value(&s->norm_sum[i]) / (double)s->norm_count[i];
    EXF_TRY(exf_solve_fill_cold(h, s, err));
    for (size_t i = 0; rc == EXF_OK && i < e; i++) {
        float *out = &t->expert_norms[(size_t)l * e + i];
        *out = (float)h[i];
        t->expert_count[(size_t)l * e + i] = s->norm_count[i];
        if (!isfinite(*out) || !(*out > 0))
            rc = exf_fail(err, EXF_NUMERIC,
                          "layer %d: expert %zu has mean output norm %g over %llu tokens, expected a number above 0",
                          (int)t->layer_number[l], i, h[i], (unsigned long long)s->norm_count[i]);
    }
out:
    exf_mem_free(h);
    return rc;
}

typedef enum { BY_NORM, BY_REAP, BY_ENERGY } criterion;

static criterion criterion_of(const exf_static_pool *p)
{
    return strcmp(p->by, "energy") == 0 ? BY_ENERGY : strcmp(p->by, "reap") == 0 ? BY_REAP : BY_NORM;
}

/* Returns how much expert e of layer l has of a criterion. */
static double amount(const exf_tables *t, int l, const exf_exact *energy, criterion by, int e)
{
    size_t at = (size_t)l * (size_t)t->shape.n_experts + (size_t)e;
    return by == BY_ENERGY ? exf_exact_value(&energy[e]) : (double)(by == BY_REAP ? t->contribution : t->expert_norms)[at];
}

/* Chooses the pool's experts, those of most first, ties to the lower number. */
static void choose_members(const exf_tables *t, int l, const exf_exact *energy, const exf_static_pool *p, int32_t *members)
{
    criterion by = criterion_of(p);
    int have = 0, n = p->size;
    for (int e = 0; e < (int)t->shape.n_experts; e++) {
        double mine = amount(t, l, energy, by, e);
        if (have == n && !(mine > amount(t, l, energy, by, members[n - 1]))) continue;
        int at = have < n ? have++ : n - 1;
        for (; at > 0 && mine > amount(t, l, energy, by, members[at - 1]); at--) members[at] = members[at - 1];
        members[at] = e;
    }
}

/* Chooses target and scale of one expert outside the pool. */
static void assign(const exf_static_pool *p, const int32_t *members, const float *coeff, const float *loss, int32_t *target,
                   float *scale)
{
    int best = 0;
    for (int i = 1; i < p->size; i++)
        if (loss[members[i]] < loss[members[best]]) best = i;
    *target = members[best];
    *scale = loss[members[best]] < EXF_LOSS_NEVER ? coeff[members[best]] : 0.0f;
}

void exf_solve_pools(int l, const exf_exact *energy, exf_tables *t)
{
    size_t e = (size_t)t->shape.n_experts;
    for (int i = 0; i < t->n_pools; i++) {
        const exf_static_pool *p = &t->pool[i];
        int32_t *members = p->members + (size_t)l * (size_t)p->size;
        choose_members(t, l, energy, p, members);
        for (size_t s = 0; s < e; s++) {
            size_t row = ((size_t)l * e + s) * e;
            assign(p, members, t->coeff + row, t->loss + row, &p->target_ids[(size_t)l * e + s],
                   &p->target_scale[(size_t)l * e + s]);
        }
        for (int k = 0; k < p->size; k++) {
            p->target_ids[(size_t)l * e + (size_t)members[k]] = members[k];
            p->target_scale[(size_t)l * e + (size_t)members[k]] = 1;
        }
    }
}

static int is_base(const char *projector)
{
    return strcmp(projector, exf_projector_pair.name) == 0;
}

exf_code exf_solve_check(const exf_solve_options *o, exf_err *err)
{
    const exf_projector *p;
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < o->n_projectors; i++) EXF_TRY(exf_projector_require(o->projectors[i], &p, err));
    for (size_t i = 0; i < o->n_ranks; i++)
        if (o->ranks[i] < 1 || o->ranks[i] > EXF_BASIS_RANK)
            return exf_fail(err, EXF_USAGE, "calibrate.ranks: %lld, expected 1 to %d, the columns of a basis",
                            (long long)o->ranks[i], EXF_BASIS_RANK);
out:
    return rc;
}

static exf_code add_ranks(exf_provenance *p, const exf_solve_options *o, exf_err *err)
{
    exf_text list = {0};
    exf_code rc = EXF_OK;
    int ranked = 0;
    for (size_t i = 0; i < o->n_projectors; i++) ranked |= exf_projector_find(o->projectors[i])->ranked;
    for (size_t i = 0; ranked && i < o->n_ranks; i++)
        EXF_TRY(exf_text_addf(&list, err, "%s%lld", i ? "," : "", (long long)o->ranks[i]));
    if (ranked) EXF_TRY(exf_provenance_add(p, err, "solve.ranks", "%s", list.s ? list.s : ""));
out:
    exf_text_free(&list);
    return rc;
}

static exf_code add_budgets(exf_provenance *p, const exf_solve_options *o, exf_err *err)
{
    exf_text budgets = {0}, rules = {0};
    exf_code rc = EXF_OK;
    if (!o->n_budgets) return EXF_OK;
    for (size_t i = 0; i < o->n_budgets; i++)
        EXF_TRY(exf_text_addf(&budgets, err, "%s%lld", i ? "," : "", (long long)o->budgets[i]));
    for (size_t i = 0; i < o->n_rules; i++) EXF_TRY(exf_text_addf(&rules, err, "%s%s", i ? "," : "", o->rules[i]));
    EXF_TRY(exf_provenance_add(p, err, "solve.budgets", "%s", budgets.s));
    EXF_TRY(exf_provenance_add(p, err, "solve.budget_rules", "%s", rules.s ? rules.s : ""));
out:
    exf_text_free(&budgets);
    exf_text_free(&rules);
    return rc;
}

static exf_code add_provenance(exf_tables *t, const exf_statistics_reader *r, const exf_solve_options *o, exf_err *err)
{
    exf_code rc;
    exf_provenance *p = &t->provenance;
    char digest[EXF_SHA256_HEX];
    exf_text names = {0};
    EXF_TRY(exf_provenance_copy(p, &r->provenance, err));
    if (o->statistics_digest)
        snprintf(digest, sizeof digest, "%s", o->statistics_digest);
    else
        EXF_TRY(exf_h5_digest(r->h, digest, err));
    EXF_TRY(exf_provenance_add(p, err, "solve.program", "exfold-solve"));
    EXF_TRY(exf_provenance_add(p, err, "solve.version", "%s", exf_release()));
    EXF_TRY(exf_provenance_add(p, err, "solve.commit", "%s", exf_commit()));
    EXF_TRY(exf_provenance_add(p, err, "solve.statistics_digest", "%s", digest));
    EXF_TRY(exf_provenance_add(p, err, "solve.ridge", "%.17g", o->rule.ridge));
    if (o->rule.clip)
        EXF_TRY(exf_provenance_add(p, err, "solve.clip", "%.17g,%.17g", o->rule.clip_min, o->rule.clip_max));
    else
        EXF_TRY(exf_provenance_add(p, err, "solve.clip", "none"));
    EXF_TRY(exf_text_addf(&names, err, "pair"));
    for (size_t i = 0; i < o->n_projectors; i++)
        if (!is_base(o->projectors[i])) EXF_TRY(exf_text_addf(&names, err, ",%s", o->projectors[i]));
    EXF_TRY(exf_provenance_add(p, err, "solve.projectors", "%s", names.s));
    EXF_TRY(add_ranks(p, o, err));
    EXF_TRY(add_budgets(p, o, err));
    if (o->min_pair_tokens > 1)
        EXF_TRY(exf_provenance_add(p, err, "solve.min_pair_tokens", "%llu", (unsigned long long)o->min_pair_tokens));
out:
    exf_text_free(&names);
    return rc;
}

static exf_code solve_layer(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_solve_norms(s, l, t, err));
    EXF_TRY(exf_projector_pair.layer(s, o, l, t, err));
    EXF_TRY(exf_measures_solve(s, o, l, t, err));
    for (size_t i = 0; i < o->n_projectors; i++)
        if (!is_base(o->projectors[i])) EXF_TRY(exf_projector_find(o->projectors[i])->layer(s, o, l, t, err));
    exf_solve_pools(l, s->energy_sum, t);
out:
    return rc;
}

static int wants_vectors(const exf_solve_options *o)
{
    int any = 0;
    for (size_t i = 0; i < o->n_projectors; i++) any |= exf_projector_find(o->projectors[i])->observes != 0;
    return any;
}

static exf_code solve_layers(exf_statistics_reader *r, const exf_solve_options *o, exf_tables *t, exf_err *err)
{
    exf_layer_statistics s;
    exf_budget_inputs budgets = {.n = NULL};
    exf_vector_sums vectors = {.n_pairs = 0};
    exf_code rc = exf_layer_statistics_new(&s, (int)r->shape.n_experts, err);
    if (rc != EXF_OK) return rc;
    s.vectors = &vectors;
    if (o->n_budgets) EXF_TRY(exf_budget_inputs_new(&budgets, t, err));
    if (wants_vectors(o)) EXF_TRY(exf_blas_reserve_cpu(1, err));
    EXF_TRY(exf_measures_new(r, t, err));
    for (size_t i = 0; i < o->n_projectors; i++) {
        const exf_projector *p = exf_projector_find(o->projectors[i]);
        if (p->begin) EXF_TRY(p->begin(r, o, t, err));
    }
    for (int l = 0; l < r->n_layers; l++) {
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(exf_statistics_get(r, l, &s, err));
        exf_vector_sums_free(&vectors);
        if (wants_vectors(o)) EXF_TRY(exf_statistics_get_vectors(r, l, &vectors, err));
        EXF_TRY(solve_layer(&s, o, l, t, err));
        if (o->n_budgets) EXF_TRY(exf_budget_inputs_take(&budgets, &s, l, t, err));
    }
    if (o->n_budgets) EXF_TRY(exf_budgets_solve(&budgets, o, t, err));
out:
    exf_budget_inputs_free(&budgets);
    exf_vector_sums_free(&vectors);
    exf_layer_statistics_free(&s);
    return rc;
}

static exf_code check_energies(const exf_statistics_reader *r, const exf_solve_options *o, exf_err *err)
{
    for (size_t i = 0; !r->has_energies && i < o->n_pools_by; i++)
        if (strcmp(o->pool_by[i].by, "energy") == 0)
            return exf_fail(err, EXF_MODEL,
                            "%s: is of a version before 4, which has no energies: a pool of %lld by energy needs statistics of "
                            "this release (exfold-calibrate)", exf_h5_path(r->h), (long long)o->pool_by[i].size);
    return EXF_OK;
}

/* Allocates tables with the pools by norm, then the others. */
static exf_code new_tables(exf_tables *t, const exf_statistics_reader *r, const exf_solve_options *o, exf_err *err)
{
    int64_t *sizes = NULL;
    size_t n = o->n_pools + o->n_pools_by;
    exf_code rc;
    EXF_TRY(exf_mem_new(&sizes, n, sizeof *sizes, "pools", err));
    for (size_t i = 0; i < n; i++) sizes[i] = i < o->n_pools ? o->pools[i] : o->pool_by[i - o->n_pools].size;
    EXF_TRY(exf_tables_new(t, &r->shape, r->layer_number, r->n_layers, sizes, n, err));
    for (size_t i = 0; i < o->n_pools_by; i++)
        snprintf(t->pool[o->n_pools + i].by, sizeof t->pool->by, "%s", o->pool_by[i].by);
out:
    exf_mem_free(sizes);
    return rc;
}

exf_code exf_solve(const char *statistics_path, const exf_solve_options *o, exf_tables *t, exf_err *err)
{
    exf_code rc;
    exf_statistics_reader r = {0};
    memset(t, 0, sizeof *t);
    EXF_TRY(exf_solve_check(o, err));
    EXF_TRY(exf_statistics_open(&r, statistics_path, err));
    EXF_TRY(check_energies(&r, o, err));
    EXF_TRY(new_tables(t, &r, o, err));
    EXF_TRY(add_provenance(t, &r, o, err));
    EXF_TRY(solve_layers(&r, o, t, err));
out:
    exf_statistics_close(&r);
    if (rc != EXF_OK) exf_tables_free(t);
    return rc;
}
