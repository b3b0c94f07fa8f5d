/* solve.h - solves tables from statistics: closed forms in double, deterministic.
 * Each projector has its own closed form (artifact/projector.h). */
#ifndef EXF_SOLVE_SOLVE_H
#define EXF_SOLVE_SOLVE_H
#include "projector/solving.h"

/* Checks the options: EXF_USAGE names an unknown projector and the known ones, or an impossible rank. */
exf_code exf_solve_check(const exf_solve_options *o, exf_err *err) EXF_CHECKED;

/* Solves a whole statistics file.  The caller frees t with exf_tables_free(). */
exf_code exf_solve(const char *statistics_path, const exf_solve_options *o, exf_tables *t, exf_err *err) EXF_CHECKED;

/* Computes the expert norms h of layer l: norm_sum / norm_count, filled in for cold experts. */
exf_code exf_solve_norms(const exf_layer_statistics *s, int l, exf_tables *t, exf_err *err) EXF_CHECKED;
/* Solves the static pools of layer l from its norms, contributions, energies (energy_sum [E]; NULL where no pool is by
 * energy), coefficients and losses (docs/method.md, sections 3 and 10): the D experts of most of the pool's criterion, ties
 * to the lower number; every other expert goes to the member of
 * least loss, ties to the earlier member. */
void exf_solve_pools(int l, const exf_exact *energy, exf_tables *t);
#endif
