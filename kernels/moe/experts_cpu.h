/* experts_cpu.h - the CPU's routed experts; see expert_products.h. */
#ifndef EXF_KERNELS_EXPERTS_CPU_H
#define EXF_KERNELS_EXPERTS_CPU_H
#include "kernels/moe/expert_products.h"

/* Bytes of workspace for a call of this shape. */
size_t exf_experts_workspace_cpu(const exf_expert_shape *s);
/* outputs [T, K, H] of x [T, H], everything float32: one set of products per expert, in
 * the order of tokens, so that a call's bits depend on its own tokens alone. */
void exf_experts_cpu(float *outputs, const float *x, const int32_t *ids, const exf_expert_matrices *m, const exf_expert_shape *s,
                     void *workspace);
/* out[t] = sigmoid(x[t, :] . w), x [n_rows, n]; the inner product in double. */
void exf_switch_weights_cpu(float *out, const float *x, const float *w, int n_rows, int n);
#endif
