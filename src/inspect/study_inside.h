/* study_inside.h - between study*.c only. */
#ifndef EXF_INSPECT_STUDY_INSIDE_H
#define EXF_INSPECT_STUDY_INSIDE_H
#include "inspect/study.h"

#include <math.h>

#define EXF_NO_VALUE ((float)NAN) /* of a pair that was never observed */

/* Room for layer numbers (copied), counts and norms. */
exf_code exf_study_new(exf_study *s, const exf_artifact *kind, const exf_run_shape *shape, int32_t *layer_number, int n_layers,
                       exf_err *err) EXF_CHECKED;
#endif
