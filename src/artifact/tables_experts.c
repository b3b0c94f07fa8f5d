/* tables_experts.c - what the experts of a layer have of a criterion by which some of them are kept (docs/method.md, section 10). */
#include "artifact/tables.h"

int exf_tables_rank_by(const exf_tables *t, exf_pool_criterion by)
{
    return by == EXF_POOL_BY_REAP || by == EXF_POOL_BY_WEIGHTED_EAN ? t->contribution != NULL : by != EXF_POOL_BY_ENERGY;
}

double exf_tables_score(const exf_tables *t, exf_pool_criterion by, size_t l, size_t expert)
{
    size_t at = l * (size_t)t->shape.n_experts + expert;
    double routes = (double)t->expert_count[at];
    switch (by) {
    case EXF_POOL_BY_NORM: return (double)t->expert_norms[at];
    case EXF_POOL_BY_REAP: return (double)t->contribution[at];
    case EXF_POOL_BY_FREQUENCY: return routes;
    case EXF_POOL_BY_EAN: return (double)t->expert_norms[at] * routes;
    case EXF_POOL_BY_WEIGHTED_EAN: return (double)t->contribution[at] * routes;
    case EXF_POOL_BY_ENERGY: break; /* of the statistics alone */
    }
    return 0;
}
