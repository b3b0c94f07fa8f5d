/* solve_internal.h - what the files of src/solve call of each other. */
#ifndef EXF_SOLVE_SOLVE_INTERNAL_H
#define EXF_SOLVE_SOLVE_INTERNAL_H
#include "solve/solve.h"

/* ---- closed_forms.c ------------------------------------------------------------------------- */

/* Returns 1 if pair i = s * E + t of a layer has enough tokens. */
int exf_solve_observed(const exf_layer_statistics *s, const exf_solve_options *o, size_t i);
/* Returns max(0, source_sq - 2 S dot + S^2 target_sq) / source_sq; 0 if the source's output is 0 on every token. */
double exf_solve_loss(double scalar, double dot, double target_sq, double source_sq);

/* Fills the list of pairs of t->vectors, for projectors that store arrays of them, unless it is filled already.  EXF_MODEL if
 * the statistics lack sums that the projector observes. */
exf_code exf_vector_support(exf_statistics_reader *r, const exf_projector *p, exf_tables *t, exf_err *err) EXF_CHECKED;
/* Where there is no file yet: make room in t->vectors for `most` pairs of each layer, without touching a page of the arrays; list
 * the pairs of layer index l, which comes after those before it, and zero their part of the arrays. */
exf_code exf_vector_support_reserve(exf_tables *t, int64_t most, exf_err *err) EXF_CHECKED;
exf_code exf_vector_support_add(exf_tables *t, int l, const exf_vector_sums *v, exf_err *err) EXF_CHECKED;

/* A scalar that many pairs share (paper, "scalar sharing patterns") is
 *   S_G = sum dot / (sum target_sq + lambda)   over the observed pairs of the group G,
 * and each pair has its own loss under it, by the formula of projector_pair.c.  The paper clips the scalars of pairs; an
 * average over a layer or a model has no outlier to cut, so shared scalars are never clipped.  The sums are exact: they do
 * not depend on the order of pairs or layers. */
typedef struct {
    exf_exact dot, target_sq;
} exf_shared_sums;

void exf_shared_add(exf_shared_sums *sums, const exf_layer_statistics *s, const exf_solve_options *o);
double exf_shared_value(const exf_shared_sums *sums, const exf_solve_options *o);
exf_shared_scalar *exf_shared_find(const exf_tables *t, const char *name); /* NULL: t has no pattern of that name */
/* Fills scalar and losses of layer l of the pattern `name`, which t has already. */
exf_code exf_shared_fill(const char *name, double scalar, const exf_layer_statistics *s, const exf_solve_options *o, int l,
                         exf_tables *t, exf_err *err) EXF_CHECKED;

/* ---- massive.c: what few tokens do in a layer ------------------------------------------------------- */

typedef struct {
    double spread; /* E ||x||^2 times E 1 / ||x||^2 of the residual stream after the layer; 1: all tokens are alike; 0: not known */
    int expert;    /* of those whose outputs are a few tokens', the one with most of the layer's energy; -1: there is none */
    double share;  /* its share of that energy, 0 to 1 */
    double first;  /* share of the stream's energy that the sequences' first tokens have; 0: not known */
} exf_massive;
exf_massive exf_massive_of(const exf_layer_statistics *s);
/* Adds the facts solve.massive_layers, _experts and _first_tokens, each where it names something, and says so.
 * layer: [n_layers]. */
exf_code exf_massive_facts(exf_tables *t, const exf_massive *layer, exf_err *err) EXF_CHECKED;

/* ---- measures.c: statistics of experts and pairs beside projectors, and pools by them --------- */

/* Computes the expert norms h of layer l: norm_sum / norm_count, filled in for cold experts. */
exf_code exf_solve_norms(const exf_layer_statistics *s, int l, exf_tables *t, exf_err *err) EXF_CHECKED;
/* Allocates the arrays in t; by_sequence: 1 if the statistics have sums over sequences. */
exf_code exf_measures_new(int by_sequence, exf_tables *t, exf_err *err) EXF_CHECKED;
/* Fills layer l, whose losses are solved already: they say which pairs are observed (docs/method.md, sections 1, 5 and 8;
 * paper, "full-layer expert geometry").
 *   rms[e]           sqrt(sq_sum / norm_count)             as h if the expert is cold
 *   contribution[e]  contribution_sum / norm_count         0 if cold
 *   std_error[s,t]   of dot / (target_sq + lambda), not clipped, over the n sequences that saw
 *                    the pair, if the statistics have sums over sequences
 *   frobenius[s,t]   sqrt(max(0, sq0[s,t] - 2 S dot0 + S^2 sq0[t,s]) / sq0[s,t]) with the S that is stored;
 *                    0 if the source's output is 0 on every token
 *   similarity[s,t]  1 - d / dmax, d^2 = (sq0[s,t] + sq0[t,s] - 2 dot0[s,t]) / count */
exf_code exf_measures_solve(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t,
                            exf_err *err) EXF_CHECKED;
/* Solves what experts have over the routes of REAP's code, where the statistics observed these: the bare arrays of the tables. */
exf_code exf_solve_bare(const exf_layer_statistics *s, int l, exf_tables *t, exf_err *err) EXF_CHECKED;
/* Solves the static pools of layer l from its norms, contributions, energies (energy_sum [E]; NULL where no pool is by
 * energy), coefficients and losses (docs/method.md, sections 3 and 10): the D experts with the most of the pool's criterion,
 * ties to the lower number; every other expert goes to the member of least loss, ties to the earlier member. */
void exf_solve_pools(int l, const exf_exact *energy, exf_tables *t);

/* ---- correlation.c: the matrix that joint weights go by (docs/method.md, section 14) --------------------- */

/* Fills t->cosine and what came with it for layer l, whose losses and rms are solved already.  The measured matrix M has 1 on the
 * diagonal, 0 where the pair is unobserved, else cosine_sum / count; without has_cosines dot0 / sqrt(sq0[s,t] sq0[t,s]), 0 if a
 * norm is 0.
 *   cosine            M with its eigenvalues raised to 0.02 and its diagonal scaled back to 1: an unobserved pair
 *                     has what follows from the others.  M itself where none is below
 *   relative_norms    n, such that log n_s - log n_t fits (log sq0[s,t] - log sq0[t,s]) / 2 in least squares over the observed
 *                     pairs, each weighing its count, of pairs of 8 tokens and outputs above 0; n and rms have one
 *                     geometric mean.  An expert in no such pair keeps its place by rms
 *   least_eigenvalue  of M
 *   median_cosine_sq  the lower median of M^2 over observed pairs; 0 without one
 *   near_copies       the share of the observed pairs' tokens in pairs with M^2 >= EXF_NEAR_COPY */
exf_code exf_correlations_solve(const exf_layer_statistics *s, int l, int has_cosines, exf_tables *t, exf_err *err) EXF_CHECKED;

/* ---- norm_head.c ------------------------------------------------------------------------------- */

/* Solves the norm head of layer l, whose rms is solved already, from sums that are known.  EXF_MODEL where another layer's have
 * other directions. */
exf_code exf_solve_norm_head(const exf_norm_sums *s, int l, exf_tables *t, exf_err *err) EXF_CHECKED;

/* ---- coverage.c --------------------------------------------------------------------------------- */

/* Adds the facts EXF_STABLE_FACT, EXF_HALVES_FACT and EXF_SMALL_FACT, once all layers are solved; halves: 1 if the statistics know
 * them. */
exf_code exf_coverage_facts(exf_tables *t, int halves, exf_err *err) EXF_CHECKED;

/* ---- budgets.c: budgets per token (docs/method.md, section 9) ------------------------------------ */

/* The numbers of all layers from which budgets are solved. */
typedef struct {
    int n_layers, top_k;
    size_t *n;          /* [L] sampled tokens */
    double **residual[2]; /* [L] [n, K] predicted residuals of keeping 1..K routes, by mean norms and by those of the head */
    double **sum[2];    /* [L] [n, K] w rms of the first 1..K routes, the same */
    int n_predicted;    /* layers with the latter */
    double **weight;    /* [L] [n, K] w of a token's routes, falling; 0 for empty slots */
    double *stream;     /* [L] mean of 1 / ||x||^2 of the residual stream x after the layer; 0: unknown */
    double *output;     /* [L] mean squared norm of a routed expert output; -1: unknown */
    int *costless;      /* [L] 1: that is 0, or so small that its inverse is no number: no route of the layer costs anything */
} exf_budget_inputs;

/* EXF_USAGE for a budget of more experts than a token of the tables' model has. */
exf_code exf_budget_inputs_new(exf_budget_inputs *b, const exf_solve_options *o, const exf_tables *t, exf_err *err) EXF_CHECKED;
void exf_budget_inputs_free(exf_budget_inputs *b); /* accepts zeroed memory */
/* Takes layer l, whose cosine, rms and norm head are solved already. */
exf_code exf_budget_inputs_take(exf_budget_inputs *b, const exf_layer_statistics *s, int l, const exf_tables *t,
                                exf_err *err) EXF_CHECKED;
/* Adds all budgets that o names to t.  EXF_MODEL where the statistics lack what a rule needs, EXF_NUMERIC where no lambda
 * comes within 1 % of a budget, as with a small sample. */
exf_code exf_budgets_solve(const exf_budget_inputs *b, const exf_solve_options *o, exf_tables *t, exf_err *err) EXF_CHECKED;
#endif
