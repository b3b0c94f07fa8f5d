/* gates.h - quality gates: limits that a validation must not exceed, such as "kl=0.2" or "P4:kl_p99=1.5".  METRIC=LIMIT is for
 * every variant that was asked for, VARIANT:METRIC=LIMIT for one, at every size of its decode batches unless it names one.  A row
 * that its batches do not constrain passes no gate, whatever its figures. */
#ifndef EXF_VALIDATE_GATES_H
#define EXF_VALIDATE_GATES_H
#include "validate/validate.h"

typedef struct {
    char variant[EXF_VARIANT_NAME_LEN]; /* "": every variant */
    char metric[16];
    double limit;
} exf_quality_gate;

/* Parses a gate.  EXF_USAGE names the part that is not understood, or a variant that is none of those asked for among `lanes`. */
exf_code exf_quality_gate_parse(exf_quality_gate *g, const char *text, const exf_validate_lane *lanes, size_t n_lanes,
                                exf_err *err) EXF_CHECKED;
/* EXF_USAGE if a gate before gates[last] limits the same metric of the same variant. */
exf_code exf_quality_gate_is_new(const exf_quality_gate *gates, size_t last, exf_err *err) EXF_CHECKED;
/* Checks a gate.  EXF_THRESHOLD names the first variant above the limit, its value and the limit, or one that is not constrained
 * and the figures that say so. */
exf_code exf_quality_gate_check(const exf_quality_gate *g, const exf_validation *v, exf_err *err) EXF_CHECKED;
#endif
