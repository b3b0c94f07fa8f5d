/* fold_budget.h - what a token would lose by keeping its first P routes, predicted from the mean inner
 * products of its experts' outputs, and how many routes a rule keeps (docs/method.md, section 9).
 *
 * These are the steps of exf_fold_prefill_budget_cpu, for those that choose the rule's numbers. */
#ifndef EXF_KERNELS_FOLD_BUDGET_H
#define EXF_KERNELS_FOLD_BUDGET_H
#include "kernels/fold/fold_cpu.h"

/* Fills residual[P] for P = 0..n, of the n routes of a row by falling w rms: residual[0] is the energy
 * of the routed output, residual[n] is 0.  Returns n, the slots that have an expert.  `ridge` as in
 * exf_fold_budget_options; t has cosine and rms. */
int exf_fold_residuals(double residual[EXF_FOLD_MAX_K + 1], const exf_fold_routes *in, int row, const exf_fold_tables *t,
                       float ridge);
/* Fills sum[P] for P = 0..n: the first P routes' w rms; returns n. */
int exf_fold_rms_sums(double sum[EXF_FOLD_MAX_K + 1], const exf_fold_routes *in, int row, const exf_fold_tables *t);

/* Return the P from min(least, n) to min(most, n) that a rule keeps of n routes. */
int exf_fold_choose_by_residual(const double *residual, int n, float penalty, int least, int most);
int exf_fold_choose_by_share(const double *sum, int n, float share, int least, int most);
#endif
