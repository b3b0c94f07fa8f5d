/* solving.h - what the projectors' closed forms share: the settings, and which pairs count. */
#ifndef EXF_PROJECTOR_SOLVING_H
#define EXF_PROJECTOR_SOLVING_H
#include "artifact/projector.h"
#include "kernels/statistics/pair_scalar.h"

typedef struct exf_solve_options {
    exf_scalar_rule rule;          /* of the pair's scalar */
    uint64_t min_pair_tokens;      /* a pair with fewer counts as unobserved; 0 is 1 */
    const char *const *projectors; /* names of projectors beside "pair", which is always solved */
    size_t n_projectors;
    const int64_t *ranks; /* of ranked projectors */
    size_t n_ranks;
    const int64_t *pools; /* sizes D of static pools */
    size_t n_pools;
} exf_solve_options;

/* Whether pair i = s * E + t of a layer has the tokens that it takes. */
int exf_solve_observed(const exf_layer_statistics *s, const exf_solve_options *o, size_t i);
/* max(0, source_sq - 2 S dot + S^2 target_sq) / source_sq; a source whose output was 0
 * on every token loses nothing wherever it goes. */
double exf_solve_loss(double scalar, double dot, double target_sq, double source_sq);
#endif
