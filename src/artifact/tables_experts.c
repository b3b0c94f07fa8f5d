/* tables_experts.c - what the experts of a layer have of a criterion by which some of them are kept (docs/method.md, section
 * 10). */
#include "artifact/tables.h"

#include "base/mem.h"

exf_code exf_tables_rank_check(const exf_tables *t, exf_expert_rank r, exf_err *err)
{
    int weighs = r.by == EXF_POOL_BY_REAP || r.by == EXF_POOL_BY_WEIGHTED_EAN;
    if (r.bare && !t->bare_count)
        return exf_fail(err, EXF_USAGE, "the tables hold no scores by the router of REAP's code; calibrate with --set "
                        "calibrate.pairs=common_input --set calibrate.bare_router=true");
    if (!r.bare && weighs && !t->contribution)
        return exf_fail(err, EXF_USAGE, "the tables hold no contribution, which came with version 2; calibrate again");
    return EXF_OK;
}

double exf_tables_score(const exf_tables *t, exf_expert_rank r, size_t l, size_t expert)
{
    size_t at = l * (size_t)t->shape.n_experts + expert;
    double routes = (double)(r.bare ? t->bare_count : t->expert_count)[at];
    const float *norms = r.bare ? t->bare_norms : t->expert_norms, *contribution = r.bare ? t->bare_contribution : t->contribution;
    switch (r.by) {
    case EXF_POOL_BY_NORM: return (double)norms[at];
    case EXF_POOL_BY_REAP: return (double)contribution[at];
    case EXF_POOL_BY_FREQUENCY: return routes;
    case EXF_POOL_BY_EAN: return (double)norms[at] * routes;
    case EXF_POOL_BY_WEIGHTED_EAN: return (double)contribution[at] * routes;
    case EXF_POOL_BY_ENERGY: break; /* of the statistics alone */
    }
    return 0;
}

exf_code exf_tables_add_bare(exf_tables *t, exf_err *err)
{
    size_t rows = (size_t)t->n_layers * (size_t)t->shape.n_experts;
    exf_code rc;
    EXF_TRY(exf_mem_new(&t->bare_count, rows, sizeof *t->bare_count, "tables", err));
    EXF_TRY(exf_mem_new(&t->bare_norms, rows, sizeof *t->bare_norms, "tables", err));
    EXF_TRY(exf_mem_new(&t->bare_contribution, rows, sizeof *t->bare_contribution, "tables", err));
out:
    return rc;
}
