/* rewrite_step.h - applies rewriters between the two halves of a layer: the lane's rewriter changes
 * the routes of the whole run, and other lanes' rewriters change copies of them for probes. */
#ifndef EXF_FORWARD_REWRITE_STEP_H
#define EXF_FORWARD_REWRITE_STEP_H
#include "forward/pass.h"

/* Sets s->mask for a lane whose rewriter retains only some experts; sets NULL otherwise. */
exf_code exf_mask_load(exf_step *s, const exf_rewriter *r, exf_err *err) EXF_CHECKED;
/* Rewrites the step's routes with its lane's rewriter; router_routes keeps the router's routes if a
 * correction reads them. */
exf_code exf_routes_rewrite(exf_step *s, exf_err *err) EXF_CHECKED;
/* Fills the routes of every probing lane from the first lane's.  If the lanes are joined, also
 * copies the hidden states to every other lane, since lanes differ from this layer on. */
exf_code exf_first_lane_share(exf_step *s, int joined, exf_err *err) EXF_CHECKED;
#endif
