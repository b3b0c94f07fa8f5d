/* accumulate.h - the observer that keeps sums and writes them as `statistics`.
 *
 * Fed by a forward pass (exf_accumulator_observer) or by capture files
 * (exf_accumulate_captures); both give the same bits, for the sums are exact and
 * the terms the same.  A layer is written as soon as it is complete, so memory is
 * one layer's sums per worker.
 *
 * Expects the blocks of a sequence one after the other on one worker, as both give
 * them (EXF_INTERNAL otherwise), so that a sequence's own sums are known at its end:
 * they are the units of the jackknife. */
#ifndef EXF_ACCUMULATE_ACCUMULATE_H
#define EXF_ACCUMULATE_ACCUMULATE_H
#include "accumulate/accumulate_options.h"
#include "accumulate/facts.h"
#include "artifact/artifact_capture.h"
#include "artifact/statistics.h"
#include "forward/forward.h"

typedef struct exf_accumulator exf_accumulator;

/* Of an accumulator that is to be. */
typedef struct {
    const char *target; /* statistics file */
    int force;
    const exf_run_shape *shape;
    const int32_t *layer_number; /* [n_layers] others that are shown are passed over */
    int n_layers;
    /* Where the rows come from, one part after the other: their facts, to which those of the
     * accumulate stage are added, and their sequences in order; if one part's are not known,
     * there are no sums over sequences. */
    const exf_facts_part *parts;
    size_t n_parts;
    const exf_accumulate_options *options;
} exf_accumulator_plan;

/* What cannot be kept together: EXF_USAGE in terms of recipe keys. */
exf_code exf_accumulate_check(const exf_accumulate_options *o, exf_err *err) EXF_CHECKED;
/* Bytes that statistics of one layer take on disk, and that one holds in memory while it is observed. */
uint64_t exf_accumulate_disk(const exf_run_shape *shape, const exf_accumulate_options *o);
uint64_t exf_accumulate_memory(const exf_run_shape *shape, const exf_accumulate_options *o, int n_workers);
/* Bytes of GPU memory that it holds; 0 on the CPU. */
struct exf_backend; /* kernels/backend.h */
uint64_t exf_accumulate_device_memory(const struct exf_backend *b, const exf_run_shape *shape, const exf_accumulate_options *o);

/* Starts the statistics file. */
exf_code exf_accumulator_new(exf_accumulator **out, const exf_accumulator_plan *plan, exf_err *err) EXF_CHECKED;
/* Plug this into a lane; valid as long as the accumulator. */
const exf_observer *exf_accumulator_observer(exf_accumulator *a);
/* Moves the file into place. */
exf_code exf_accumulator_commit(exf_accumulator *a, exf_err *err) EXF_CHECKED;
/* Gives up what was not committed; NULL is allowed. */
void exf_accumulator_free(exf_accumulator *a);

/* Statistics of one or more capture files of the same model, settings and layers, over
 * different data, into `target`.  Read twice where vectors are wanted.  A capture holds
 * no expert that a token was not routed to: EXF_USAGE for common input. */
exf_code exf_accumulate_captures(const char *const *paths, size_t n_paths, const char *target, int force,
                                 const exf_accumulate_options *o, exf_err *err) EXF_CHECKED;
#endif
