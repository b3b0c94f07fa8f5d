/* decode_schedule.h - which tokens are prefill, which are decode, and which decode together.
 *
 * Sequences side by side form a decode batch: step q of a batch of B is its tokens at
 * position q.  Causality makes a whole teacher-forced decode one ordinary forward pass
 * (method, section 3). */
#ifndef EXF_FOLD_DECODE_SCHEDULE_H
#define EXF_FOLD_DECODE_SCHEDULE_H
#include "forward/forward.h"

typedef struct {
    const exf_batch *batch;
    int prefill_tokens; /* positions below are prefill, the rest decode; 0: every position is both */
    size_t n_batches;   /* decode batches */
    size_t n_steps;     /* of all batches */
    size_t *first;      /* [n_steps + 1] into row */
    size_t *row;        /* every decode token's row in the run, step after step */
    int widest;         /* most sequences in a batch */
    int threads;        /* that a rewriter may use */
} exf_decode_schedule;

/* batch_of [n_sequences]: numbers that do not fall; equal numbers decode together. */
exf_code exf_decode_schedule_new(exf_decode_schedule *s, const exf_batch *batch, const size_t *batch_of, int prefill_tokens,
                                 int threads, exf_err *err) EXF_CHECKED;
void exf_decode_schedule_free(exf_decode_schedule *s);
/* Positions of a sequence of n tokens that are prefill: [0, result). */
int exf_decode_schedule_prefill(const exf_decode_schedule *s, int n);
#endif
