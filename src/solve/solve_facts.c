/* solve_facts.c - see solve_facts.h. */
#include "solve/solve_facts.h"

#include "base/text.h"
#include "base/version.h"

#include <string.h>

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
