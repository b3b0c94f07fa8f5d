/* sequence_sums.h - squares each sequence's own pair sums and adds the squares up over sequences:
 * the moments of a jackknife whose unit is the sequence.
 *
 * A sequence's own sum is the exact difference of the worker's sum before and after the
 * sequence, rounded once: it depends on no block, worker or other sequence. */
#ifndef EXF_ACCUMULATE_SEQUENCE_SUMS_H
#define EXF_ACCUMULATE_SEQUENCE_SUMS_H
#include "artifact/statistics.h"

/* The tracker of one worker. */
typedef struct {
    exf_exact *dot, *target_sq; /* [E, E] sums before the present sequence */
    uint64_t *count;            /* [E, E] */
    size_t sequence;
    int open, next_position;
} exf_sequence_tracker;

exf_code exf_sequence_tracker_new(exf_sequence_tracker *k, int n_experts, exf_err *err) EXF_CHECKED;
void exf_sequence_tracker_free(exf_sequence_tracker *k);
/* Called before n tokens of `sequence` from `position` on are added to s. */
exf_code exf_sequence_tracker_enter(exf_sequence_tracker *k, const exf_layer_statistics *s, size_t sequence, int position, int n,
                                    exf_err *err) EXF_CHECKED;
/* Adds the present sequence, if there is one, to s->seq_* and s->sequences.  EXF_NUMERIC if a
 * product leaves the range of exf_exact. */
exf_code exf_sequence_tracker_close(exf_sequence_tracker *k, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;
#endif
