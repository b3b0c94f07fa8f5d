/* pass_resume.h - saves a pass after a layer to its resume point (pass/resume.h), and restores it. */
#ifndef EXF_PASS_PASS_RESUME_H
#define EXF_PASS_PASS_RESUME_H
#include "pass/pass.h"

/* Returns the number of layers that the pass's resume point has done; 0 if it has none. */
int exf_pass_layers_done(const exf_pass *p);
/* Fills the hidden states of all lanes from the resume point, in place of exf_pass_embed(). */
exf_code exf_pass_restore(exf_pass *p, exf_err *err) EXF_CHECKED;
/* Returns the bytes of a pass's hidden states in a resume point, at most. */
uint64_t exf_pass_saved_bytes(const exf_architecture *a, const exf_batch *batch, size_t n_lanes);
/* Saves the pass after `done` layers if a save is due or a stop was requested; after a requested
 * stop returns EXF_STOPPED.  All queues are finished. */
exf_code exf_pass_save(exf_pass *p, int done, exf_err *err) EXF_CHECKED;
/* With ranks: begin and end the votes, a layer ahead, on whether the pass is saved or stopped. */
exf_code exf_pass_votes_begin(exf_pass *p, int first, exf_err *err) EXF_CHECKED;
exf_code exf_pass_votes_end(const exf_pass *p, exf_err *err) EXF_CHECKED;
/* Adds all ranks' floating-point operations up, on rank 0. */
exf_code exf_pass_sum_flops(struct exf_ranks *ranks, double *flops, exf_err *err) EXF_CHECKED;
#endif
