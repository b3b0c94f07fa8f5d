/* mix_step.h - runs the first half of a layer: h = residual(h, mixer(norm(h))), then
 * routes = router(norm(h)), sequence by sequence. */
#ifndef EXF_FORWARD_MIX_STEP_H
#define EXF_FORWARD_MIX_STEP_H
#include "forward/pass.h"

/* Run mixer and router over the step's group (a dense layer has no router), or the router alone. */
exf_code exf_mix_group(exf_step *s, exf_err *err) EXF_CHECKED;
exf_code exf_route_group(exf_step *s, exf_err *err) EXF_CHECKED;
#endif
