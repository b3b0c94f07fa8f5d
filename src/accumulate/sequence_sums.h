/* sequence_sums.h - squares each sequence's own pair sums and adds the squares up over sequences:
 * the moments of a jackknife whose unit is the sequence.
 *
 * A sequence's own sum is the exact difference of the worker's sum before and after the
 * sequence, rounded once: it depends on no block, worker or other sequence. */
#ifndef EXF_ACCUMULATE_SEQUENCE_SUMS_H
#define EXF_ACCUMULATE_SEQUENCE_SUMS_H
#include "artifact/statistics.h"
#include "kernels/backend.h"
#include "pass/observer.h"

/* The tracker of one worker. */
/* Adds up the squared norms of a layer's residual stream, exactly, over the blocks that show it
 * (pass/observer.h), for the sensitivities of budgets per token (docs/method.md, section 9). */

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

typedef struct {
    exf_exact *sum;   /* [n_workers] */
    uint64_t *count;  /* [n_workers] tokens */
    int n_workers;
    const exf_backend *b;       /* a device's; NULL: blocks come in host memory */
    exf_output_errors *device;  /* in device memory */
    exf_queue *q;               /* queue of the last device block; NULL: none in this layer */
    uint64_t device_count;
} exf_stream_energy;

exf_code exf_stream_energy_new(exf_stream_energy *s, int n_workers, exf_err *err) EXF_CHECKED;
exf_code exf_stream_energy_open_device(exf_stream_energy *s, const exf_backend *b, exf_err *err) EXF_CHECKED;
/* Adds a block's energies if it shows the stream; blocks of different workers may come from several threads.  A token's
 * energy is a sum of products in double, eight lanes in fixed order.  EXF_NUMERIC: a finite energy is out of range. */
exf_code exf_stream_energy_add(exf_stream_energy *s, const exf_moe_block *b, exf_err *err) EXF_CHECKED;
/* Queues a device block's energies; squares are added up in double. */
void exf_stream_energy_add_device(exf_stream_energy *s, const exf_device_block *b);
/* Adds what came since the last call to `to`; waits for the device. */
exf_code exf_stream_energy_take(exf_stream_energy *s, const exf_layer_statistics *to, int layer, exf_err *err) EXF_CHECKED;
void exf_stream_energy_free(exf_stream_energy *s); /* accepts zeroed memory */
#endif
