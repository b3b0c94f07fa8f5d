/* router.h - from router logits to the K chosen experts and their weights.
 *
 * softmax over all E in double; the K largest, ties to the lower expert number;
 * weights = the chosen probabilities, divided by their sum when renormalise.
 * logits [T, E]; ids [T, K] and weights [T, K] sorted by falling weight. */
#ifndef EXF_KERNELS_ROUTER_H
#define EXF_KERNELS_ROUTER_H
#include <stdint.h>

/* scratch: E doubles. */
void exf_router_softmax_cpu(int32_t *ids, float *weights, const float *logits, int n_tokens, int n_experts, int top_k, int renormalise,
                            double *scratch);
#endif
