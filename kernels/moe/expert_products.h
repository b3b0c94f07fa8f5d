/* expert_products.h - computes all routed experts of a batch of tokens in one call, on a
 * device with the tensor-core instructions for it.  The device sorts tokens by expert; no
 * count is copied to the host.
 *
 *   outputs[t, k] = down_e (silu(gate_e x_t) * up_e x_t),  e = ids[t, k]
 *
 * x [T, H], gate and up [E, I, H], down [E, H, I], outputs [T, K, H], all bfloat16;
 * ids [T, K] int32 in the device's memory, -1: no expert, its outputs become 0.
 * Experts may come in parts: the E of a call are numbers first .. first + E - 1, and
 * outputs of slots with another are left as they are.
 * With limit > 0 as in swiglu.h.  Products accumulate in float32 over the inner
 * axis in order, 16 terms at a time; the SwiGLU is float32 and rounded once.
 *
 * A token's outputs depend on its own row and its experts alone, bit for bit:
 * not on the other tokens, their number or their order. */
#ifndef EXF_KERNELS_EXPERT_PRODUCTS_H
#define EXF_KERNELS_EXPERT_PRODUCTS_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int n_tokens, n_experts, top_k;
    int d_model, d_expert; /* H, I */
    float limit;
    int first; /* number of the first expert */
} exf_expert_shape;

typedef struct {
    const uint16_t *gate, *up, *down;
} exf_expert_matrices;
#endif
