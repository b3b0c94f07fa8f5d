/* fold_cpu.h - shared by the CPU functions of exfold/fold.h, and by those who choose their numbers: a token's routes by
 * rank, the pool of a decode batch, the system of the joint forms, the steps of a budget. */
#ifndef EXF_KERNELS_FOLD_CPU_H
#define EXF_KERNELS_FOLD_CPU_H
#include "kernels/fold/fold_arguments.h"

/* A token's routes by falling rank; the first n have an expert. */
typedef struct {
    int n;
    int slot[EXF_FOLD_MAX_K], id[EXF_FOLD_MAX_K]; /* id -1: none */
    float w[EXF_FOLD_MAX_K], norm[EXF_FOLD_MAX_K]; /* norm: as G takes it, the caller's or the tables' */
} exf_fold_ranked;

void exf_fold_rank_row(exf_fold_ranked *r, const exf_fold_routes *in, int row, const exf_fold_tables *t, exf_fold_rank rank);
/* Index among the first `kept` routes of the one with the least of an omitted expert's losses
 * [E], ties to the earlier; -1 if every loss is above max_loss. */
int exf_fold_target(const exf_fold_ranked *r, int kept, const float *loss, float max_loss);
/* Returns the index among the first `kept` routes of the one with the largest |cosine| in an omitted expert's row [E], ties to the
 * earlier. */
int exf_fold_likest(const exf_fold_ranked *r, int kept, const float *cosine);
/* Writes a row's first slots as they are. */
void exf_fold_copy_row(const exf_fold_routes *out, const exf_fold_routes *in, int row);
/* Rescales w [P], the kept weights and then those of slots without an expert, as o says, and writes the row, empty slots after
 * them; a row of padding as it is. */
void exf_fold_write_row(const exf_fold_routes *out, int row, const exf_fold_routes *in, const exf_fold_ranked *r, float *w,
                      const exf_fold_prefill_options *o);

/* A batch's experts by falling importance; the first n_pool are kept.  Of a given pool: its members, then all others. */
typedef struct {
    int n_union, n_pool;
    int16_t expert[EXF_FOLD_MAX_E]; /* [n_union], the pool first */
} exf_fold_pool;

/* Returns 0 and leaves *p undefined when nothing is to be done: the batch routes to no more than o->pool experts, or no member
 * of a given pool is an expert. */
int exf_fold_choose_pool(exf_fold_pool *p, const exf_fold_routes *io, const exf_fold_tables *t, const exf_fold_decode_options *o);

/* Returns the term of importance of a slot, whose expert is `id`. */
float exf_fold_term_of(const exf_fold_routes *io, int64_t slot, int id, const exf_fold_tables *t, exf_fold_importance kind);
/* Returns the pool's member of least loss, or of largest |cosine|, of an expert's row [E], ties to the more important; -1: every
 * loss is above max_loss. */
int exf_fold_pool_target(const exf_fold_pool *p, const float *loss, float max_loss);
int exf_fold_pool_likest(const exf_fold_pool *p, const float *cosine);
/* Returns what the weight of an omitted expert's slots is multiplied with; `to` is exf_fold_pool_target's, or -1.  *target: the
 * expert that gets them. */
float exf_fold_move(int *target, const exf_fold_pool *p, int from, int to, const exf_fold_tables *t,
                    const exf_fold_decode_options *o);

/* The system of n slots: their experts' inner products and the right-hand side. */
typedef struct {
    int n, id[EXF_FOLD_MAX_K];
    float norm[EXF_FOLD_MAX_K];
    double gram[EXF_FOLD_MAX_K][EXF_FOLD_MAX_K]; /* lower triangle */
    double right[EXF_FOLD_MAX_K];
} exf_fold_joint;

/* L D L' = gram + ridge I, where ridge = rho mean(diag). */
typedef struct {
    double a[EXF_FOLD_MAX_K][EXF_FOLD_MAX_K]; /* L below the diagonal, 1/D on it */
    double d[EXF_FOLD_MAX_K];
    double ridge;
} exf_fold_factors;

/* Begins a system of experts, each of that norm, with a right-hand side of 0. */
void exf_fold_joint_begin(exf_fold_joint *s, const int *id, const float *norm, int n, const exf_fold_tables *t);
/* Adds an omitted route of weight w to the right-hand side. */
void exf_fold_joint_omit(exf_fold_joint *s, int id, float norm, float w, const exf_fold_tables *t);
/* Factors the system, rho raised as fold.h says; returns 0 if that does not help or the mean diagonal is 0: then the caller folds
 * by pairs' scalars. */
int exf_fold_joint_factor(exf_fold_factors *f, const exf_fold_joint *s, double rho);
/* Solves right := (gram + rho mean(diag) I)^-1 right; returns 0 if there is no solution. */
int exf_fold_joint_solve(exf_fold_joint *s, double rho);
/* Rewrites rows as exf_fold_decode_joint does, given every expert's target [E]; -1: it stays. */
void exf_fold_join_rows(const exf_fold_routes *io, const int16_t *target, const exf_fold_tables *t, double rho);

/* ---- budgets: what a token would lose by keeping its first P routes, predicted from the mean inner products of its experts'
 * outputs, and how many routes a rule keeps (docs/method.md, section 9): the steps of exf_fold_prefill_budget_cpu ---- */

/* Fills residual[P] for P = 0..n, of the n routes of a row by falling w rms: residual[0] is the energy
 * of the routed output, residual[n] is 0.  Returns n, the slots that have an expert.  `ridge` as in
 * exf_fold_budget_options; t has cosine, and rms where the routes have no norms. */
int exf_fold_residuals(double residual[EXF_FOLD_MAX_K + 1], const exf_fold_routes *in, int row, const exf_fold_tables *t,
                       float ridge);
/* Fills sum[P] for P = 0..n: the first P routes' w rms; returns n. */
int exf_fold_rms_sums(double sum[EXF_FOLD_MAX_K + 1], const exf_fold_routes *in, int row, const exf_fold_tables *t);

/* Return the P from min(least, n) to min(most, n) that a rule keeps of n routes. */
int exf_fold_choose_by_residual(const double *residual, int n, float penalty, int least, int most);
int exf_fold_choose_by_share(const double *sum, int n, float share, int least, int most);
#endif
