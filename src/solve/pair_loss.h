/* pair_loss.h - which pairs and experts count as observed, and what a scalar loses. */
#ifndef EXF_SOLVE_PAIR_LOSS_H
#define EXF_SOLVE_PAIR_LOSS_H
#include "artifact/statistics.h"
#include "solve/solve_options.h"

/* Whether pair i = s * E + t of a layer has the tokens that it takes. */
int exf_solve_observed(const exf_layer_statistics *s, const exf_solve_options *o, size_t i);
/* max(0, source_sq - 2 S dot + S^2 target_sq) / source_sq; a source whose output was 0
 * on every token loses nothing wherever it goes. */
double exf_solve_loss(double scalar, double dot, double target_sq, double source_sq);
/* x[e] of cold experts becomes the lower median of the others, or 1 when all are cold. */
exf_code exf_solve_fill_cold(double *x, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;
#endif
