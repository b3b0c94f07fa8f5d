/* head_step.h - final norm and logits of every lane that has an observer for them.
 * All lanes' logits of the same rows come one after the other on the same worker, so
 * that they can be compared without being kept. */
#ifndef EXF_FORWARD_HEAD_STEP_H
#define EXF_FORWARD_HEAD_STEP_H
#include "forward/pass.h"

exf_code exf_head_step(exf_pass *p, exf_err *err) EXF_CHECKED;
#endif
