/* memory_plan.h - what a pass holds in a device's memory, and how it makes do with
 * less: weights in two slots or one, tokens through the experts in larger or smaller
 * pieces. */
#ifndef EXF_FORWARD_MEMORY_PLAN_H
#define EXF_FORWARD_MEMORY_PLAN_H
#include "forward/layer_step.h"

/* Weights' stream and the grouped experts of a pass whose workspaces are open. */
exf_code exf_open_device(exf_pass *p, exf_err *err) EXF_CHECKED;
void exf_close_device(exf_pass *p);
#endif
