/* rewrite_step.h - between the two halves of a layer: the lane's rewriter changes the
 * routes of the whole run, and other lanes' rewriters change copies of them for probes. */
#ifndef EXF_FORWARD_REWRITE_STEP_H
#define EXF_FORWARD_REWRITE_STEP_H
#include "forward/pass.h"

/* Sets s->mask for a lane whose rewriter lets only some experts survive; NULL otherwise. */
exf_code exf_mask_load(exf_step *s, const exf_rewriter *r, exf_err *err) EXF_CHECKED;
/* The step's routes as its lane's rewriter wants them; router_routes keeps the router's where a correction reads them. */
exf_code exf_routes_rewrite(exf_step *s, exf_err *err) EXF_CHECKED;
/* The first lane's routes as every probing lane's rewriter would have them; and the hidden states
 * of lanes that part from the first here. */
exf_code exf_first_lane_share(exf_step *s, int joined, exf_err *err) EXF_CHECKED;
#endif
