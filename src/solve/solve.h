/* solve.h - from statistics to tables: closed forms in double, deterministic.
 * Each projector's is its own (artifact/projector.h). */
#ifndef EXF_SOLVE_SOLVE_H
#define EXF_SOLVE_SOLVE_H
#include "projector/solving.h"

/* EXF_USAGE naming an unknown projector and the known ones, or an impossible rank. */
exf_code exf_solve_check(const exf_solve_options *o, exf_err *err) EXF_CHECKED;

/* Solves a whole statistics file.  Caller frees t with exf_tables_free(). */
exf_code exf_solve(const char *statistics_path, const exf_solve_options *o, exf_tables *t, exf_err *err) EXF_CHECKED;

/* x[e] of cold experts becomes the lower median of the others, or 1 when all are cold. */
exf_code exf_solve_fill_cold(double *x, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;
/* Expert norms h of layer l: norm_sum / norm_count, cold experts filled. */
exf_code exf_solve_norms(const exf_layer_statistics *s, int l, exf_tables *t, exf_err *err) EXF_CHECKED;
/* Static pools of layer l, from its norms, coefficients and losses (method,
 * section 3): the D experts of largest h, ties to the lower number; everyone
 * else goes to the member of least loss, ties to the earlier member. */
void exf_solve_pools(int l, exf_tables *t);
#endif
