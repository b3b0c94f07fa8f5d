/* routing.h - the router of a MoE layer: which experts a token goes to, and with what weight. */
#ifndef EXF_MOE_ROUTING_H
#define EXF_MOE_ROUTING_H
#include "weights/layer_weights.h"
#include "moe/workspace.h"

/* ids, weights [T, K] from the normed input [T, H], all in ws's memory.  logits
 * [T, E] are the caller's; tokens [T] are read only where the layer routes by
 * token (EXF_W_ROUTER_TABLE).  mask NULL, or [2, E]: added to every row of logits, and
 * put in the place of the router's bias (-infinity: the expert does not exist).
 * A bfloat16 input is [T, 2 H] in two parts (rounding.h), for lw->router_split: the
 * product is then near enough to that of float32. */
void exf_routing_run(exf_workspace *ws, int32_t *ids, float *weights, exf_matrix input, const int32_t *tokens, int n_tokens,
                     const exf_architecture *a, const exf_layer_weights *lw, const float *mask, float *logits);
#endif
