/* vector_support.h - which pairs carry vectors: shared by the solvers of them. */
#ifndef EXF_SOLVE_VECTOR_SUPPORT_H
#define EXF_SOLVE_VECTOR_SUPPORT_H
#include "solve/pair_loss.h"
#include "solve/solver.h"

/* The list of pairs of t->vectors, if it is not there yet.  EXF_MODEL when the statistics
 * have no sums for `projector`. */
exf_code exf_vector_support(exf_statistics_reader *r, const char *projector, exf_tables *t, exf_err *err) EXF_CHECKED;
#endif
