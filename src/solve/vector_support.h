/* vector_support.h - lists the pairs that have vectors, for the projectors that store arrays of them. */
#ifndef EXF_SOLVE_VECTOR_SUPPORT_H
#define EXF_SOLVE_VECTOR_SUPPORT_H
#include "solve/solving.h"

/* Fills the list of pairs of t->vectors unless it is filled already.  EXF_MODEL if the statistics
 * lack sums that the projector observes. */
exf_code exf_vector_support(exf_statistics_reader *r, const exf_projector *p, exf_tables *t, exf_err *err) EXF_CHECKED;
#endif
