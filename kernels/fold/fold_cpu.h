/* fold_cpu.h - shared by the CPU functions of exfold/fold.h: a token's routes by rank, and
 * the pool of a decode batch, the system of the joint forms. */
#ifndef EXF_KERNELS_FOLD_CPU_H
#define EXF_KERNELS_FOLD_CPU_H
#include "kernels/fold/fold_internal.h"

/* A token's routes by falling rank; the first n have an expert. */
typedef struct {
    int n;
    int slot[EXF_FOLD_MAX_K], id[EXF_FOLD_MAX_K]; /* id -1: none */
    float w[EXF_FOLD_MAX_K];
} exf_fold_ranked;

void exf_fold_rank_row(exf_fold_ranked *r, const exf_fold_routes *in, int row, const exf_fold_tables *t, exf_fold_rank rank);
/* Index among the first `kept` routes of the one with the least of an omitted expert's losses
 * [E], ties to the earlier; -1 if every loss is above max_loss. */
int exf_fold_target(const exf_fold_ranked *r, int kept, const float *loss, float max_loss);
/* Rescales w [P], the kept weights and then those of slots without an expert, as o says, and writes the row. */
void exf_fold_put_row(const exf_fold_routes *out, int row, const exf_fold_routes *in, const exf_fold_ranked *r, float *w,
                      const exf_fold_prefill_options *o);

/* A batch's experts by falling importance; the first n_pool are kept. */
typedef struct {
    int n_union, n_pool;
    int16_t expert[EXF_FOLD_MAX_E]; /* [n_union], the pool first */
} exf_fold_pool;

/* Returns 0 and leaves *p undefined when the batch routes to no more than o->pool experts. */
int exf_fold_choose_pool(exf_fold_pool *p, const exf_fold_routes *io, const exf_fold_tables *t, const exf_fold_decode_options *o);

/* The system of n slots: their experts' inner products and the right-hand side. */
typedef struct {
    int n, id[EXF_FOLD_MAX_K];
    double gram[EXF_FOLD_MAX_K][EXF_FOLD_MAX_K]; /* lower triangle */
    double right[EXF_FOLD_MAX_K];
} exf_fold_joint;

/* L D L' = gram + ridge I, where ridge = rho mean(diag). */
typedef struct {
    double a[EXF_FOLD_MAX_K][EXF_FOLD_MAX_K]; /* L below the diagonal, 1/D on it */
    double d[EXF_FOLD_MAX_K];
    double ridge;
} exf_fold_factors;

/* Begins a system with a right-hand side of 0. */
void exf_fold_joint_begin(exf_fold_joint *s, const int *id, int n, const exf_fold_tables *t);
/* Adds an omitted route of weight w to the right-hand side. */
void exf_fold_joint_omit(exf_fold_joint *s, int id, float w, const exf_fold_tables *t);
/* Factors the system, rho raised as fold.h says; returns 0 if that does not help or the mean diagonal is 0. */
int exf_fold_joint_factor(exf_fold_factors *f, const exf_fold_joint *s, double rho);
/* Solves right := (gram + rho mean(diag) I)^-1 right; returns 0 if there is no solution. */
int exf_fold_joint_solve(exf_fold_joint *s, double rho);
/* Rewrites rows as exf_fold_decode_joint does, given every expert's target [E]; -1: it stays. */
void exf_fold_join_rows(const exf_fold_routes *io, const int16_t *target, const exf_fold_tables *t, double rho);
#endif
