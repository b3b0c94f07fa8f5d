/* head_step.h - computes the final norm and the logits of every lane whose observer reads logits.
 * The logits of the same rows are shown lane after lane on the same worker, so that observers
 * can compare them without storing them. */
#ifndef EXF_FORWARD_HEAD_STEP_H
#define EXF_FORWARD_HEAD_STEP_H
#include "forward/pass.h"

exf_code exf_head_step(exf_pass *p, exf_err *err) EXF_CHECKED;
#endif
