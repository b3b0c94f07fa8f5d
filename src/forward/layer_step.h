/* layer_step.h - runs one layer for all lanes.
 *
 * A layer has two halves: mixer and router (mix_step.h) over all sequences, so that a
 * rewriter sees the routes of the whole run (a decode batch spans sequences), then the
 * experts (src/moe).  If no rewriter or observer needs all routes at once, both halves of
 * one group of sequences run before the next group (hidden.h), so that hidden states kept
 * in host memory cross the bus once. */
#ifndef EXF_FORWARD_LAYER_STEP_H
#define EXF_FORWARD_LAYER_STEP_H
#include "forward/pass.h"

/* Runs every lane's hidden states through the layer whose weights are loaded. */
exf_code exf_layer_step(exf_pass *p, int layer, int moe_index, exf_progress *progress, exf_err *err) EXF_CHECKED;
#endif
