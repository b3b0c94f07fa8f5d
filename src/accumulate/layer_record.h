/* layer_record.h - writes a layer's sums to a run's resume point, and reads them back with every
 * bit (pass/resume.h).  The record `sums-<l>` has a tensor for each array of
 * exf_layer_statistics, exact sums as U64 [..., 3], and those of exf_vector_sums under "vectors.". */
#ifndef EXF_ACCUMULATE_LAYER_RECORD_H
#define EXF_ACCUMULATE_LAYER_RECORD_H
#include "artifact/statistics.h"
#include "pass/resume.h"

/* v: NULL or without pairs if the layer has no vector sums. */
exf_code exf_layer_record_put(exf_resume *r, int layer, const exf_layer_statistics *s, const exf_vector_sums *v,
                              exf_err *err) EXF_CHECKED;
/* s was made by exf_layer_statistics_new(); v is filled and freed by the caller, NULL if no vectors are wanted. */
exf_code exf_layer_record_get(const exf_resume *r, int layer, exf_layer_statistics *s, exf_vector_sums *v, int d_model,
                              exf_err *err) EXF_CHECKED;
#endif
