/* shared.h - scalars that many pairs share (paper, "scalar sharing patterns"):
 *
 *   S_G = sum dot / (sum target_sq + lambda)   over the observed pairs of the group G
 *
 * and each pair's own loss under it, by the formula of projector_pair.c.  The paper clips
 * "scalar coefficients" of its pairwise artifact; an average over a layer or a model
 * has no outlier to cut, so shared scalars are never clipped.  The sums are exact:
 * they do not depend on the order of pairs or layers. */
#ifndef EXF_SOLVE_SHARED_H
#define EXF_SOLVE_SHARED_H
#include "solve/solving.h"

typedef struct {
    exf_exact dot, target_sq;
} exf_shared_sums;

void exf_shared_add(exf_shared_sums *sums, const exf_layer_statistics *s, const exf_solve_options *o);
double exf_shared_value(const exf_shared_sums *sums, const exf_solve_options *o);
exf_shared_scalar *exf_shared_find(const exf_tables *t, const char *name); /* Returns the pattern of that name; NULL: none. */
/* Fills scalar and losses of layer l of the pattern `name`, which t has already. */
exf_code exf_shared_fill(const char *name, double scalar, const exf_layer_statistics *s, const exf_solve_options *o, int l,
                         exf_tables *t, exf_err *err) EXF_CHECKED;
#endif
