/* expert_step.h - the second half of a layer: experts, and who looks at them. */
#ifndef EXF_FORWARD_EXPERT_STEP_H
#define EXF_FORWARD_EXPERT_STEP_H
#include "forward/layer_step.h"

/* h <- residual(h, experts(norm(h))) of s->lane by s->routes: shown to the lane's
 * observer as often as it asks, and on the first lane to the lanes that probe. */
exf_code exf_expert_step(exf_step *s, exf_progress *progress, exf_err *err) EXF_CHECKED;
/* The same in parts, where one sweep is all: the layer begins, group after group goes
 * through, the layer ends. */
exf_code exf_expert_begin(exf_step *s, exf_err *err) EXF_CHECKED;
exf_code exf_expert_group(exf_step *s, exf_err *err) EXF_CHECKED;
exf_code exf_expert_end(exf_step *s, exf_progress *progress, exf_err *err) EXF_CHECKED;

/* A block's arrays, the backend's, to the lane's observer as ordinary memory. */
exf_code exf_show_block(const exf_step *s, size_t sequence, int position, int n, const exf_experts_space *e, exf_workspace *w, int worker,
                        exf_err *err) EXF_CHECKED;
/* 1 if the lane's observer sees a sweep's blocks as they lie on the device, or on the host. */
int exf_shown_device(const exf_step *s, int sweep);
int exf_shown_host(const exf_step *s, int sweep);
/* The block that observers and rewriters are shown, of n tokens from `position`;
 * arrays that are the backend's are still to be set. */
exf_moe_block exf_block_of(const exf_step *s, const exf_route_set *routes, const exf_route_set *router_routes, size_t sequence, int position, int n,
                           int worker);
/* Lets the lane's rewriter add its vectors to routed, both in the backend's memory. */
exf_code exf_correct_routed(const exf_rewriter *r, exf_moe_block *b, const float *outputs, float *routed, exf_workspace *w,
                            exf_err *err) EXF_CHECKED;

/* One block of the first lane, whose experts' outputs are in e, under the routes of
 * every lane that probes. */
exf_code exf_probe_run(const exf_step *s, size_t sequence, int position, int n, const exf_experts_space *e, int worker, exf_err *err) EXF_CHECKED;
/* All experts on the tokens that the lane's observer asked for. */
exf_code exf_common_input_run(exf_step *s, exf_err *err) EXF_CHECKED;
/* How many these are of a sequence, and the position of the i-th. */
int exf_common_input_tokens(const exf_step *s, size_t sequence);
int exf_common_input_position(const exf_step *s, size_t sequence, int i);
#endif
