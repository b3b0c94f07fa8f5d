/* lanes_record.h - writes what the lanes of a validation have counted so far to the run's resume
 * point, and reads it back (pass/resume.h).
 *
 * The record `lanes-<l>`, l the last layer done: error_sq, norm_sq U64 [lanes, n, 3], the exact sums of
 * layer_errors.h; usage U64 [lanes, n, 4], the members of exf_expert_usage; n the MoE layers done. */
#ifndef EXF_VALIDATE_LANES_RECORD_H
#define EXF_VALIDATE_LANES_RECORD_H
#include "fold/fold_rewriter.h"
#include "pass/resume.h"
#include "validate/layer_errors.h"

/* The numbers of all lanes in the first n MoE layers. */
typedef struct {
    size_t n_lanes;
    int n;
    exf_exact *error_sq, *norm_sq; /* [n_lanes, n] */
    exf_expert_usage *usage;       /* [n_lanes, n] */
} exf_lanes_record;

exf_code exf_lanes_record_new(exf_lanes_record *k, size_t n_lanes, int n, exf_err *err) EXF_CHECKED;
void exf_lanes_record_free(exf_lanes_record *k);
exf_code exf_lanes_record_put(const exf_lanes_record *k, exf_resume *r, int layer, exf_err *err) EXF_CHECKED;
exf_code exf_lanes_record_get(exf_lanes_record *k, const exf_resume *r, int layer, exf_err *err) EXF_CHECKED;
#endif
