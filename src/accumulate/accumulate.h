/* accumulate.h - the accumulator: an observer that adds up sums and writes them as `statistics`.
 *
 * A forward pass (exf_accumulator_observer) or capture files (exf_accumulate_captures) feed
 * it; both give the same bits, since the sums are exact and the terms the same.  A layer is
 * written as soon as it is complete, so memory is one layer's sums per worker.
 *
 * The blocks of a sequence must come one after the other on one worker (EXF_INTERNAL
 * otherwise), as both sources give them, so that a sequence's own sums are known at its
 * end: they are the units of the jackknife. */
#ifndef EXF_ACCUMULATE_ACCUMULATE_H
#define EXF_ACCUMULATE_ACCUMULATE_H
#include "accumulate/accumulate_options.h"
#include "accumulate/facts.h"
#include "artifact/artifact_capture.h"
#include "artifact/statistics.h"
#include "pass/forward.h"
#include "ranks/ranks.h"
#include "pass/resume.h"

typedef struct exf_accumulator exf_accumulator;

/* Receives the sums of layer index i of an accumulator as soon as they are complete, layer after layer, from one thread at a
 * time; s is the accumulator's.  consume NULL: nobody receives them. */
typedef struct {
    void *self;
    exf_code (*consume)(void *self, int i, const exf_layer_statistics *s, exf_err *err);
} exf_layer_consumer;

/* Settings of an accumulator that is to be made. */
typedef struct {
    const char *target; /* statistics file; NULL: none is written, as for a sample of a pass */
    int force;
    const exf_run_shape *shape;
    const int32_t *layer_number; /* [n_layers] layers to accumulate; others are ignored */
    int n_layers;
    /* Parts from which the rows come, one after the other: their facts, to which those of the
     * accumulate stage are added, and their sequences in order.  If the sequences of one part are
     * unknown, no sums over sequences are made. */
    const exf_facts_part *parts;
    size_t n_parts;
    const exf_accumulate_options *options;
    exf_ranks *ranks;   /* of which the pass is one, with rows from first_row of the parts on; NULL: one process.  Only
                         * rank 0 has a target; the observer's ends of sweeps and layers are then collective */
    size_t first_row;
    exf_resume *resume; /* the run's resume point, from which finished layers are taken; NULL: none */
    exf_layer_consumer consumer; /* used on the rank that writes the file */
} exf_accumulator_plan;

/* Refuses options that cannot be combined: EXF_USAGE in terms of recipe keys. */
exf_code exf_accumulate_check(const exf_accumulate_options *o, exf_err *err) EXF_CHECKED;
/* Return the bytes that one layer's statistics take on disk, and that one layer takes in memory while it is observed. */
uint64_t exf_accumulate_disk(const exf_run_shape *shape, const exf_accumulate_options *o);
uint64_t exf_accumulate_memory(const exf_run_shape *shape, const exf_accumulate_options *o, int n_workers);
/* Returns the bytes of GPU memory that an accumulator holds; 0 on the CPU. */
struct exf_backend; /* kernels/backend.h */
uint64_t exf_accumulate_device_memory(const struct exf_backend *b, const exf_run_shape *shape, const exf_accumulate_options *o);

/* Adds the facts of the accumulate stage. */
exf_code exf_accumulate_facts(exf_provenance *p, const exf_accumulate_options *o, exf_err *err) EXF_CHECKED;

/* Starts the statistics file. */
exf_code exf_accumulator_new(exf_accumulator **out, const exf_accumulator_plan *plan, exf_err *err) EXF_CHECKED;
/* Returns the observer for a lane; it is valid as long as the accumulator. */
const exf_observer *exf_accumulator_observer(exf_accumulator *a);
/* Adds facts to the file's provenance that are known only after the pass; collective. */
exf_code exf_accumulator_add_facts(exf_accumulator *a, const exf_provenance *p, exf_err *err) EXF_CHECKED;
/* Moves the file into place; collective.  digest: rank 0 gets that of the file's payload; may be NULL. */
exf_code exf_accumulator_commit(exf_accumulator *a, char digest[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
/* Frees the accumulator and deletes a file that was not committed; NULL is allowed. */
void exf_accumulator_free(exf_accumulator *a);

/* Makes statistics in `target` from one or more capture files of the same model, settings and
 * layers, over different data.  Files are read twice if vectors are wanted.  A capture has only
 * outputs of experts that tokens were routed to: EXF_USAGE for common input.  digest: of the result's payload; may be NULL. */
exf_code exf_accumulate_captures(const char *const *paths, size_t n_paths, const char *target, int force,
                                 const exf_accumulate_options *o, char digest[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
#endif
