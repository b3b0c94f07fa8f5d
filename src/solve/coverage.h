/* coverage.h - counts how much of a layer was observed. */
#ifndef EXF_SOLVE_COVERAGE_H
#define EXF_SOLVE_COVERAGE_H
#include "artifact/tables.h"

typedef struct {
    size_t pairs;    /* ordered, without self-pairs */
    size_t observed; /* pairs with a loss */
    size_t thin;     /* pairs seen by too few tokens to count */
    size_t cold;     /* experts to which no token was routed */
} exf_layer_coverage;

/* Returns the coverage of layer index l. */
exf_layer_coverage exf_coverage_of(const exf_tables *t, int l);
#endif
