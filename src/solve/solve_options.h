/* solve_options.h - what is asked of the solver. */
#ifndef EXF_SOLVE_SOLVE_OPTIONS_H
#define EXF_SOLVE_SOLVE_OPTIONS_H
#include "kernels/statistics/pair_scalar.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    exf_scalar_rule rule;          /* of the pair's scalar */
    uint64_t min_pair_tokens;      /* a pair with fewer counts as unobserved; 0 is 1 */
    const char *const *projectors; /* names of solvers beside "pair", which is always solved */
    size_t n_projectors;
    const int64_t *ranks; /* of "lowrank" */
    size_t n_ranks;
    const int64_t *pools; /* sizes D of static pools */
    size_t n_pools;
} exf_solve_options;
#endif
