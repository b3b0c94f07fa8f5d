/* moe_internal.h - functions that the files of the MoE block share. */
#ifndef EXF_PASS_MOE_INTERNAL_H
#define EXF_PASS_MOE_INTERNAL_H
#include "pass/moe_layer.h"

/* Shows the block to the lane's observer (moe_show.c); stream: its updated hidden states, NULL if it has none or before the
 * last sweep. */
exf_code exf_moe_show(const exf_moe_layer *l, const exf_moe_view *v, const exf_moe_arrays *m, const float *stream,
                      exf_err *err) EXF_CHECKED;
/* Return 1 if the observer reads a sweep's blocks in GPU memory, or in host memory. */
int exf_moe_shown_on_device(const exf_moe_layer *l, int sweep);
int exf_moe_shown_on_host(const exf_moe_layer *l, int sweep);
/* Return a block with every member set but the arrays that the backend computes. */
exf_moe_block exf_moe_host_block(const exf_moe_layer *l, const exf_moe_view *v);
exf_device_block exf_moe_device_block(const exf_moe_layer *l, const exf_moe_view *v, exf_matrix outputs);

/* Adds the rewriter's correction, if it has one, to routed (moe_show.c). */
exf_code exf_moe_correct(const exf_moe_layer *l, const exf_rewriter *r, const exf_moe_view *v, exf_matrix outputs, float *routed,
                         exf_err *err) EXF_CHECKED;
/* Runs a probing lane's routes on the block, whose experts' outputs are in m, and shows the result. */
exf_code exf_moe_probe_run(const exf_moe_layer *l, const exf_moe_probe *p, const exf_moe_view *v, const exf_moe_arrays *m,
                           exf_err *err) EXF_CHECKED;

/* Fills m->input and m->x from the recording, and computes the routes if they are not recorded (recorded.c). */
exf_code exf_moe_recorded_input(const exf_moe_layer *l, exf_workspace *w, exf_moe_arrays *m, size_t row, int n,
                                exf_err *err) EXF_CHECKED;
#endif
