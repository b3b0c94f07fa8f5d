/* solving.h - settings of the projectors' closed forms, and functions that these share. */
#ifndef EXF_SOLVE_SOLVING_H
#define EXF_SOLVE_SOLVING_H
#include "artifact/projector.h"
#include "kernels/statistics/pair_scalar.h"

enum { EXF_MOST_POOLS = 64, EXF_MOST_BUDGETS = 16, EXF_MOST_RULES = 4 };

/* A static pool of `size` experts, those of most `by`: "norm", "reap" or "energy" (artifact/tables.h). */
/* Scalars that many pairs share (paper, "scalar sharing patterns"):
 *
 *   S_G = sum dot / (sum target_sq + lambda)   over the observed pairs of the group G
 *
 * and each pair's own loss under it, by the formula of projector_pair.c.  The paper clips
 * "scalar coefficients" of its pairwise artifact; an average over a layer or a model
 * has no outlier to cut, so shared scalars are never clipped.  The sums are exact:
 * they do not depend on the order of pairs or layers. */

typedef struct {
    int64_t size;
    const char *by; /* static */
} exf_pool_choice;

typedef struct exf_solve_options {
    exf_scalar_rule rule;          /* how the pair's scalar is clipped and regularised */
    uint64_t min_pair_tokens;      /* a pair with fewer counts as unobserved; 0 is 1 */
    const char *const *projectors; /* names of projectors beside "pair", which is always solved */
    size_t n_projectors;
    const int64_t *ranks; /* of ranked projectors */
    size_t n_ranks;
    const int64_t *pools; /* sizes D of static pools by norm */
    size_t n_pools;
    exf_pool_choice pool_by[EXF_MOST_POOLS]; /* further pools */
    size_t n_pools_by;
    int64_t budgets[EXF_MOST_BUDGETS]; /* mean experts per token, of which each rule is solved */
    size_t n_budgets;
    const char *rules[EXF_MOST_RULES]; /* static names of exf_budget.rule */
    size_t n_rules;
    const double *measured_kl;    /* [L] KL of folding one layer alone at P = K / 2, for the rule "measured"; borrowed, or NULL */
    const double *measured_scale; /* [L] the rule's scale itself, in place of measured_kl; borrowed, or NULL */
    int partial; /* 1: the statistics may lack shards of their corpus (artifact/shards.h), which the tables then say */
    const char *statistics_digest; /* the payload digest of the statistics, where it is known; NULL: computed */
} exf_solve_options;

/* Returns 1 if pair i = s * E + t of a layer has enough tokens. */
int exf_solve_observed(const exf_layer_statistics *s, const exf_solve_options *o, size_t i);
/* Returns max(0, source_sq - 2 S dot + S^2 target_sq) / source_sq; 0 if the source's output is 0 on every token. */
double exf_solve_loss(double scalar, double dot, double target_sq, double source_sq);
/* Sets x[e] of cold experts to the lower median of the others above 0, or to 1 if there are none. */
exf_code exf_solve_fill_cold(double *x, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;

/* Lists the pairs that have vectors, for the projectors that store arrays of them. */

/* Fills the list of pairs of t->vectors unless it is filled already.  EXF_MODEL if the statistics
 * lack sums that the projector observes. */
exf_code exf_vector_support(exf_statistics_reader *r, const exf_projector *p, exf_tables *t, exf_err *err) EXF_CHECKED;

typedef struct {
    exf_exact dot, target_sq;
} exf_shared_sums;

void exf_shared_add(exf_shared_sums *sums, const exf_layer_statistics *s, const exf_solve_options *o);
double exf_shared_value(const exf_shared_sums *sums, const exf_solve_options *o);
exf_shared_scalar *exf_shared_find(const exf_tables *t, const char *name); /* Returns the pattern of that name; NULL: none. */
/* Fills scalar and losses of layer l of the pattern `name`, which t has already. */
exf_code exf_shared_fill(const char *name, double scalar, const exf_layer_statistics *s, const exf_solve_options *o, int l,
                         exf_tables *t, exf_err *err) EXF_CHECKED;
#endif
