/* inspection_internal.h - shared by inspection*.c only. */
#ifndef EXF_INSPECT_INSPECTION_INTERNAL_H
#define EXF_INSPECT_INSPECTION_INTERNAL_H
#include "inspect/inspection.h"

#include <math.h>

#define EXF_NO_VALUE ((float)NAN) /* of a pair that was never observed */

/* Allocates layer numbers (copied), counts and norms. */
exf_code exf_inspection_new(exf_inspection *s, const exf_artifact *kind, const exf_run_shape *shape, int32_t *layer_number,
                            int n_layers, exf_err *err) EXF_CHECKED;
#endif
