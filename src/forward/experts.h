/* experts.h - the feed-forward parts: routed experts, shared experts, dense SwiGLU. */
#ifndef EXF_FORWARD_EXPERTS_H
#define EXF_FORWARD_EXPERTS_H
#include "weights/layer_weights.h"
#include "forward/workspace.h"

/* s->outputs [B, K, H] = E_id(input) for every slot, unweighted; 0 where the id is -1.
 * Tokens are bucketed by expert, one set of products per expert.  ids: host. */
void exf_experts_run(exf_workspace *ws, int n_tokens, const int32_t *ids, const exf_architecture *a, const exf_layer_weights *lw,
                     const exf_experts_space *s);
/* The same for slots whose id is not -1, into outputs whose other slots stay as they are. */
void exf_experts_add(exf_workspace *ws, int n_tokens, const int32_t *ids, const exf_architecture *a, const exf_layer_weights *lw,
                     const exf_experts_space *s);
/* s->routed [B, H] = sum over slots in order of weight * output.  weights: the backend's. */
void exf_experts_combine(exf_workspace *ws, int n_tokens, const float *weights, const exf_architecture *a, const exf_experts_space *s);
/* s->outputs [n, E, H] = every expert on every row of s->input. */
void exf_every_expert_run(exf_workspace *ws, int n_rows, const exf_architecture *a, const exf_layer_weights *lw, const exf_common_input_space *s);

/* s->block = s->routed + the shared experts, if the layer has any: one SwiGLU of
 * width d_shared, times sigmoid(switch . x) where the layer has a switch. */
void exf_shared_experts_run(exf_workspace *ws, int n_tokens, const exf_architecture *a, const exf_layer_weights *lw,
                            const exf_experts_space *s);

/* s->block [B, H] = down(silu(gate x) * up x). */
void exf_dense_ffn_run(exf_workspace *ws, int n_tokens, const exf_architecture *a, const exf_layer_weights *lw, const exf_experts_space *s);
#endif
