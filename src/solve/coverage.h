/* coverage.h - how much of a layer was observed. */
#ifndef EXF_SOLVE_COVERAGE_H
#define EXF_SOLVE_COVERAGE_H
#include "artifact/tables.h"

typedef struct {
    size_t pairs;    /* ordered, without self-pairs */
    size_t observed; /* of those, with a loss */
    size_t thin;     /* seen, but by too few tokens to count */
    size_t cold;     /* experts that no token was routed to */
} exf_layer_coverage;

/* Of layer index l. */
exf_layer_coverage exf_coverage_of(const exf_tables *t, int l);
#endif
