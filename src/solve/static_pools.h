/* static_pools.h - solves the norms of experts, and the static pools that are chosen by them and by other criteria. */
#ifndef EXF_SOLVE_STATIC_POOLS_H
#define EXF_SOLVE_STATIC_POOLS_H
#include "solve/solving.h"

/* Computes the expert norms h of layer l: norm_sum / norm_count, filled in for cold experts. */
exf_code exf_solve_norms(const exf_layer_statistics *s, int l, exf_tables *t, exf_err *err) EXF_CHECKED;
/* Solves the static pools of layer l from its norms, contributions, energies (energy_sum [E]; NULL where no pool is by
 * energy), coefficients and losses (docs/method.md, sections 3 and 10): the D experts of most of the pool's criterion, ties
 * to the lower number; every other expert goes to the member of
 * least loss, ties to the earlier member. */
void exf_solve_pools(int l, const exf_exact *energy, exf_tables *t);
#endif
