/* accumulate.h - the observer that keeps sums and writes them as `statistics`.
 *
 * Fed by a forward pass (exf_accumulator_observer) or by capture files
 * (exf_accumulate_captures); both give the same bits, for the sums are exact and
 * the terms the same.  A layer is written as soon as it is complete, so memory is
 * one layer's sums per worker. */
#ifndef EXF_ACCUMULATE_ACCUMULATE_H
#define EXF_ACCUMULATE_ACCUMULATE_H
#include "artifact/capture_file.h"
#include "artifact/statistics.h"
#include "forward/forward.h"
#include "kernels/moments.h"

typedef struct exf_accumulator exf_accumulator;

/* Starts the statistics file `target`.  weighting and provenance of the
 * accumulate stage are added to a copy of p. */
exf_code exf_accumulator_new(exf_accumulator **out, const char *target, int force, const exf_run_shape *shape, const int32_t *layer_numbers,
                             int n_layers, exf_weighting weighting, const exf_provenance *p, exf_err *err) EXF_CHECKED;
/* Plug this into a lane; valid as long as the accumulator. */
const exf_observer *exf_accumulator_observer(exf_accumulator *a);
/* Moves the file into place. */
exf_code exf_accumulator_commit(exf_accumulator *a, exf_err *err) EXF_CHECKED;
/* Gives up what was not committed; NULL is allowed. */
void exf_accumulator_free(exf_accumulator *a);

/* Statistics of one or more capture files of the same model, settings and
 * layers, over different data, into `target`. */
exf_code exf_accumulate_captures(const char *const *paths, size_t n_paths, const char *target, int force, exf_weighting weighting,
                                 exf_err *err) EXF_CHECKED;
#endif
