/* sequence_sums.h - what one sequence adds to a layer's pair sums, squared and added
 * up over sequences: the moments of a jackknife whose unit is the sequence.
 *
 * A sequence's own sum is the exact difference of the worker's sum before and after
 * it, rounded once: it depends on no block, worker or neighbour. */
#ifndef EXF_ACCUMULATE_SEQUENCE_SUMS_H
#define EXF_ACCUMULATE_SEQUENCE_SUMS_H
#include "artifact/statistics.h"

/* One worker's. */
typedef struct {
    exf_exact *dot, *target_sq; /* [E, E] before the sequence under way */
    uint64_t *count;            /* [E, E] */
    size_t sequence;
    int open, next_position;
} exf_sequence_tracker;

exf_code exf_sequence_tracker_new(exf_sequence_tracker *k, int n_experts, exf_err *err) EXF_CHECKED;
void exf_sequence_tracker_free(exf_sequence_tracker *k);
/* Before n tokens of `sequence` from `position` are added to s. */
exf_code exf_sequence_tracker_enter(exf_sequence_tracker *k, const exf_layer_statistics *s, size_t sequence, int position, int n,
                                    exf_err *err) EXF_CHECKED;
/* Adds the sequence under way, if there is one, to s->seq_* and s->sequences.  EXF_NUMERIC
 * where a product leaves the range of exf_exact. */
exf_code exf_sequence_tracker_close(exf_sequence_tracker *k, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;
#endif
