/* budgets.h - solves budgets per token from the route samples of all layers (docs/method.md, section 9).
 *
 * For each budget P and rule: the sensitivities a_l of the layers, and lambda, bisected until the mean number of
 * experts that kernels/fold/fold_budget.h keeps of the sampled tokens is P. */
#ifndef EXF_SOLVE_BUDGETS_H
#define EXF_SOLVE_BUDGETS_H
#include "solve/solving.h"

/* The numbers of all layers that budgets are solved from. */
typedef struct {
    int n_layers, top_k;
    size_t *n;          /* [L] sampled tokens */
    double **residual;  /* [L] [n, K] predicted residuals of keeping 1..K routes */
    double **sum;       /* [L] [n, K] w rms of the first 1..K routes */
    double *stream;     /* [L] mean squared norm of the residual stream after the layer; 0: unknown */
    double *output;     /* [L] mean squared norm of a routed expert output */
} exf_budget_inputs;

exf_code exf_budget_inputs_new(exf_budget_inputs *b, const exf_tables *t, exf_err *err) EXF_CHECKED;
void exf_budget_inputs_free(exf_budget_inputs *b); /* accepts zeroed memory */
/* Takes layer l, whose cosine and rms are solved already. */
exf_code exf_budget_inputs_take(exf_budget_inputs *b, const exf_layer_statistics *s, int l, const exf_tables *t,
                                exf_err *err) EXF_CHECKED;
/* Adds all budgets that o names to t.  EXF_MODEL where the statistics lack what a rule needs, EXF_NUMERIC where no lambda
 * comes within 1 % of a budget, as with a small sample. */
exf_code exf_budgets_solve(const exf_budget_inputs *b, const exf_solve_options *o, exf_tables *t, exf_err *err) EXF_CHECKED;
#endif
