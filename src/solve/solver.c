/* solver.c - see solver.h. */
#include "solve/budgets.h"
#include "solve/measures.h"
#include "solve/solver.h"
#include "solve/static_pools.h"

#include "base/mem.h"
#include "base/text.h"
#include "base/version.h"
#include "kernels/linear/blas_threads.h"

#include <stdio.h>
#include <string.h>

struct exf_solver {
    exf_solve_options options;
    exf_tables tables;
    exf_budget_inputs budgets;
};

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

int exf_solver_reads_file(const exf_solve_options *o)
{
    int any = 0;
    for (size_t i = 0; i < o->n_projectors; i++) any |= exf_projector_find(o->projectors[i])->reads_file;
    return any;
}

int exf_solver_wants_vectors(const exf_solve_options *o)
{
    int any = 0;
    for (size_t i = 0; i < o->n_projectors; i++) any |= exf_projector_find(o->projectors[i])->observes != 0;
    return any;
}

uint64_t exf_solver_memory(const exf_run_shape *shape, int n_layers)
{
    const exf_tables *t = NULL;
    size_t pair = sizeof *t->count + sizeof *t->coeff + sizeof *t->loss + sizeof *t->cosine + sizeof *t->similarity +
                  sizeof *t->frobenius + sizeof *t->std_error;
    return (uint64_t)n_layers * (uint64_t)shape->n_experts * (uint64_t)shape->n_experts * pair;
}

static exf_code check_energies(const exf_solver_head *head, const exf_solve_options *o, exf_err *err)
{
    for (size_t i = 0; !head->has_energies && i < o->n_pools_by; i++)
        if (strcmp(o->pool_by[i].by, "energy") == 0)
            return exf_fail(err, EXF_MODEL,
                            "%s: is of a version before 4, which has no energies: a pool of %lld by energy needs statistics of "
                            "this release (exfold-calibrate)", head->path, (long long)o->pool_by[i].size);
    return EXF_OK;
}

/* Allocates tables with the pools by norm, then the others. */
static exf_code new_tables(exf_tables *t, const exf_solver_head *head, const exf_solve_options *o, exf_err *err)
{
    int64_t *sizes = NULL;
    size_t n = o->n_pools + o->n_pools_by;
    exf_code rc;
    EXF_TRY(exf_mem_new(&sizes, n, sizeof *sizes, "pools", err));
    for (size_t i = 0; i < n; i++) sizes[i] = i < o->n_pools ? o->pools[i] : o->pool_by[i - o->n_pools].size;
    EXF_TRY(exf_tables_new(t, &head->shape, head->layer_number, head->n_layers, sizes, n, err));
    for (size_t i = 0; i < o->n_pools_by; i++)
        snprintf(t->pool[o->n_pools + i].by, sizeof t->pool->by, "%s", o->pool_by[i].by);
out:
    exf_mem_free(sizes);
    return rc;
}

/* ---- layers ----------------------------------------------------------------------------------------- */

static exf_code begin_projectors(exf_solver *s, exf_statistics_reader *r, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < s->options.n_projectors; i++) {
        const exf_projector *p = exf_projector_find(s->options.projectors[i]);
        if (p->reads_file && !r) return exf_fail(err, EXF_INTERNAL, "projector %s is solved from a file", p->name);
        if (p->begin) EXF_TRY(p->begin(r, &s->options, &s->tables, err));
    }
out:
    return rc;
}

exf_code exf_solver_new(exf_solver **out, const exf_solver_head *head, const exf_solve_options *o, exf_statistics_reader *r,
                        exf_err *err)
{
    exf_solver *s = NULL;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_solve_check(o, err));
    EXF_TRY(check_energies(head, o, err));
    EXF_TRY(exf_mem_new(&s, 1, sizeof *s, "solver", err));
    s->options = *o;
    EXF_TRY(new_tables(&s->tables, head, o, err));
    if (o->n_budgets) EXF_TRY(exf_budget_inputs_new(&s->budgets, &s->tables, err));
    if (exf_solver_wants_vectors(o)) EXF_TRY(exf_blas_reserve_cpu(1, err));
    EXF_TRY(exf_measures_new(head->by_sequence, &s->tables, err));
    rc = begin_projectors(s, r, err);
out:
    if (rc != EXF_OK)
        exf_solver_free(s);
    else
        *out = s;
    return rc;
}

static exf_code take_empty_slots(exf_tables *t, int l, uint64_t n, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (n && !t->empty_slots) rc = exf_mem_new(&t->empty_slots, (size_t)t->n_layers, sizeof *t->empty_slots, "tables", err);
    if (rc == EXF_OK && t->empty_slots) t->empty_slots[l] = n;
    return rc;
}

exf_code exf_solver_layer(exf_solver *x, int l, const exf_layer_statistics *s, exf_err *err)
{
    const exf_solve_options *o = &x->options;
    exf_tables *t = &x->tables;
    exf_code rc;
    EXF_TRY(take_empty_slots(t, l, *s->empty_slots, err));
    EXF_TRY(exf_solve_norms(s, l, t, err));
    EXF_TRY(exf_projector_pair.layer(s, o, l, t, err));
    EXF_TRY(exf_measures_solve(s, o, l, t, err));
    for (size_t i = 0; i < o->n_projectors; i++)
        if (strcmp(o->projectors[i], exf_projector_pair.name) != 0)
            EXF_TRY(exf_projector_find(o->projectors[i])->layer(s, o, l, t, err));
    exf_solve_pools(l, s->energy_sum, t);
    if (o->n_budgets) rc = exf_budget_inputs_take(&x->budgets, s, l, t, err);
out:
    return rc;
}

exf_code exf_solver_end(exf_solver *s, const exf_solve_options *o, const exf_provenance *of, exf_tables *t, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_solve_facts(&s->tables, of, o, err));
    if (o->n_budgets) EXF_TRY(exf_budgets_solve(&s->budgets, o, &s->tables, err));
    *t = s->tables;
    memset(&s->tables, 0, sizeof s->tables);
out:
    return rc;
}

void exf_solver_free(exf_solver *s)
{
    if (!s) return;
    exf_budget_inputs_free(&s->budgets);
    exf_tables_free(&s->tables);
    exf_mem_free(s);
}

/* ---- solve facts ------------------------------------------------------------------------------- */

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

exf_code exf_solve_facts(exf_tables *t, const exf_provenance *of, const exf_solve_options *o, exf_err *err)
{
    exf_code rc;
    exf_provenance *p = &t->provenance;
    exf_text names = {0};
    EXF_TRY(exf_provenance_copy(p, of, err));
    EXF_TRY(exf_provenance_add(p, err, "solve.program", "exfold-solve"));
    EXF_TRY(exf_provenance_add(p, err, "solve.version", "%s", exf_release()));
    EXF_TRY(exf_provenance_add(p, err, "solve.commit", "%s", exf_commit()));
    EXF_TRY(exf_provenance_add(p, err, "solve.statistics_digest", "%s", o->statistics_digest));
    EXF_TRY(exf_provenance_add(p, err, "solve.ridge", "%.17g", o->rule.ridge));
    if (o->rule.clip)
        EXF_TRY(exf_provenance_add(p, err, "solve.clip", "%.17g,%.17g", o->rule.clip_min, o->rule.clip_max));
    else
        EXF_TRY(exf_provenance_add(p, err, "solve.clip", "none"));
    EXF_TRY(exf_text_addf(&names, err, "pair"));
    for (size_t i = 0; i < o->n_projectors; i++)
        if (strcmp(o->projectors[i], exf_projector_pair.name) != 0) EXF_TRY(exf_text_addf(&names, err, ",%s", o->projectors[i]));
    EXF_TRY(exf_provenance_add(p, err, "solve.projectors", "%s", names.s));
    EXF_TRY(add_ranks(p, o, err));
    EXF_TRY(add_budgets(p, o, err));
    if (o->min_pair_tokens > 1)
        EXF_TRY(exf_provenance_add(p, err, "solve.min_pair_tokens", "%llu", (unsigned long long)o->min_pair_tokens));
out:
    exf_text_free(&names);
    return rc;
}
