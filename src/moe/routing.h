/* routing.h - runs the router of a MoE layer: which experts a token goes to, and with what weight. */
#ifndef EXF_MOE_ROUTING_H
#define EXF_MOE_ROUTING_H
#include "weights/layer_weights.h"
#include "moe/workspace.h"

/* Computes ids and weights [T, K] from the normed input [T, H]; all arrays are in ws's memory.
 * logits [T, E] is scratch.  tokens [T] are read only in a hash layer (EXF_W_ROUTER_TABLE).
 * mask is NULL or [2, E]: row 0 is added to every row of logits, row 1 replaces the router's
 * bias (-infinity: the expert cannot be chosen).  A bfloat16 input is [T, 2 H] in two parts
 * (rounding.h) and is multiplied with lw->router_split, nearly as precise as float32. */
void exf_routing_run(exf_workspace *ws, int32_t *ids, float *weights, exf_matrix input, const int32_t *tokens, int n_tokens,
                     const exf_architecture *a, const exf_layer_weights *lw, const float *mask, float *logits);
#endif
