/* measures.h - computes statistics of experts and pairs beside projectors
 * (docs/method.md, sections 1, 5 and 8; paper, "full-layer expert geometry"). */
#ifndef EXF_SOLVE_MEASURES_H
#define EXF_SOLVE_MEASURES_H
#include "artifact/tables.h"
#include "solve/solving.h"

/* Allocates the arrays in t; by_sequence: 1 if the statistics have sums over sequences. */
exf_code exf_measures_new(int by_sequence, exf_tables *t, exf_err *err) EXF_CHECKED;
/* Fills layer l, whose losses are solved already: they say which pairs are observed.
 *   cosine[s,t]      dot0 / sqrt(sq0[s,t] sq0[t,s])        0 if a norm is 0
 *   rms[e]           sqrt(sq_sum / norm_count)             as h if the expert is cold
 *   contribution[e]  contribution_sum / norm_count         0 if cold
 *   std_error[s,t]   of dot / (target_sq + lambda), not clipped, over the n sequences that saw
 *                    the pair, if the statistics have sums over sequences (measures.c)
 *   frobenius[s,t]   sqrt(max(0, sq0[s,t] - 2 S dot0 + S^2 sq0[t,s]) / sq0[s,t]) with the S that is stored;
 *                    0 if the source's output is 0 on every token
 *   similarity[s,t]  1 - d / dmax, d^2 = (sq0[s,t] + sq0[t,s] - 2 dot0[s,t]) / count */
exf_code exf_measures_solve(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t,
                            exf_err *err) EXF_CHECKED;
/* Fills layer l's std_error, which is allocated in t. */
void exf_std_errors_solve(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t);

/* Counts how much of a layer was observed. */

typedef struct {
    size_t pairs;    /* ordered, without self-pairs */
    size_t observed; /* pairs with a loss */
    size_t thin;     /* pairs seen by too few tokens to count */
    size_t cold;     /* experts to which no token was routed */
} exf_layer_coverage;

/* Returns the coverage of layer index l. */
exf_layer_coverage exf_coverage_of(const exf_tables *t, int l);
#endif
