/* pilot.h - finds, before a sweep with a limit, which of its variants may hold it: all of them run on a sample of the sequences,
 * and those whose interval lies beyond the limit are left out of the sweep.
 *
 * A variant holds a limit with the whole 95 % interval of its run (recommendation.h).  One whose interval on the sample begins
 * above the limit is left out, but for what the answer names all the same: the nearest of each kind where nothing holds, of all
 * variants and of those of each public runtime, and the plain fold of each P and D that stays (frontier.h, lost_to). */
#ifndef EXF_VALIDATE_PILOT_H
#define EXF_VALIDATE_PILOT_H
#include "validate/recommendation.h"

/* Returns how many sequences the pilot of a run of n runs, a whole decode batch at least; 0: none is worth its time. */
size_t exf_pilot_sequences(size_t n, int64_t largest_batch);
/* Sets keep [job->n_lanes] to 1 for the lanes that may hold the limit.  job: the lanes that were asked for, on the whole batch of
 * one rank; no resume point is read or written.  of: what rows are judged by, but for the results, which are the pilot's. */
exf_code exf_pilot_run(unsigned char *keep, const exf_validate_job *job, const exf_limit *limit, const exf_judged *of,
                       size_t sequences, exf_err *err) EXF_CHECKED;
/* Decides by the results of a pilot: keep [v->n_variants - 1]. */
exf_code exf_pilot_keep(unsigned char *keep, const exf_judged *of, const exf_limit *limit, exf_err *err) EXF_CHECKED;
#endif
