/* vector_support.h - which pairs carry vectors: shared by the projectors that store any. */
#ifndef EXF_PROJECTOR_VECTOR_SUPPORT_H
#define EXF_PROJECTOR_VECTOR_SUPPORT_H
#include "projector/solving.h"

/* The list of pairs of t->vectors, if it is not there yet.  EXF_MODEL when the statistics
 * lack sums that the projector observes. */
exf_code exf_vector_support(exf_statistics_reader *r, const exf_projector *p, exf_tables *t, exf_err *err) EXF_CHECKED;
#endif
