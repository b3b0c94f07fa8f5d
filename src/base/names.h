/* names.h - the choices and words that models, kernels, files, recipes and variants share, each spelled once. */
#ifndef EXF_BASE_NAMES_H
#define EXF_BASE_NAMES_H

/* How a router makes scores of a token's logits. */
typedef enum { EXF_ROUTER_SOFTMAX, EXF_ROUTER_SIGMOID, EXF_ROUTER_SQRT_SOFTPLUS } exf_router_score;

/* ---- pools and budgets ------------------------------------------------------------------------ */

/* The criterion by which the members of a static pool, or the experts that stay of a model, are ranked: mean output norm, mean
 * w ||u||, the sum of (w ||u||)^2, the number of routes, the sum of ||u||, or that of w ||u||. */
typedef enum {
    EXF_POOL_BY_NORM,
    EXF_POOL_BY_REAP,
    EXF_POOL_BY_ENERGY,
    EXF_POOL_BY_FREQUENCY,
    EXF_POOL_BY_EAN,
    EXF_POOL_BY_WEIGHTED_EAN
} exf_pool_criterion;
/* The rule of a budget per token: where a layer's factor comes from, or top_p, which has none.  skip is the rule of the variant
 * skip alone: what leaving out the layer's routed experts did to the model. */
typedef enum { EXF_RULE_STREAM, EXF_RULE_OUTPUT, EXF_RULE_MEASURED, EXF_RULE_TOP_P, EXF_RULE_SKIP } exf_budget_rule;

/* A pool that names no criterion is solved by the first EXF_POOL_IMPLIED. */
enum { EXF_POOL_CRITERIA = 6, EXF_POOL_IMPLIED = 3, EXF_BUDGET_RULES = 5 };
extern const char *const exf_pool_criteria[EXF_POOL_CRITERIA];
/* The criteria of models without some of their experts, in the order of the key export.by. */
extern const char *const exf_export_criteria[5];
extern const char *const exf_budget_rules[EXF_BUDGET_RULES];

/* Returns the place of a name among n; n: it is none of them. */
int exf_name_place(const char *const *names, int n, const char *name);
#endif
