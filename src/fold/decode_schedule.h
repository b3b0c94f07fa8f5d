/* decode_schedule.h - partitions a run's tokens into prefill tokens and steps of decode batches.
 *
 * Sequences side by side form a decode batch: step q of a batch of B is its tokens at
 * position q.  Causality makes a whole teacher-forced decode one ordinary forward pass
 * (docs/method.md, section 3). */
#ifndef EXF_FOLD_DECODE_SCHEDULE_H
#define EXF_FOLD_DECODE_SCHEDULE_H
#include "pass/forward.h"

typedef struct {
    const exf_batch *batch;
    int prefill_tokens; /* positions below are prefill, the rest decode; 0: every position is both */
    size_t n_batches;   /* decode batches */
    size_t n_steps;     /* steps of all batches */
    size_t *first;      /* [n_steps + 1] index of each step's first token in row */
    size_t *row;        /* every decode token's row in the run, step after step */
    int widest;         /* most sequences in a batch */
    int threads;        /* threads that a rewriter may use */
} exf_decode_schedule;

/* Makes the schedule. batch_of [n_sequences] does not fall; equal numbers decode together. */
exf_code exf_decode_schedule_new(exf_decode_schedule *s, const exf_batch *batch, const size_t *batch_of, int prefill_tokens,
                                 int threads, exf_err *err) EXF_CHECKED;
void exf_decode_schedule_free(exf_decode_schedule *s);
/* Returns how many positions of a sequence of n tokens are prefill: [0, result). */
int exf_decode_schedule_prefill(const exf_decode_schedule *s, int n);
#endif
