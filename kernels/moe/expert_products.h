/* expert_products.h - the routed experts of a run of tokens at once: tokens are bucketed
 * by expert, then each expert's three products run on its tokens.
 *
 *   outputs[t, k] = down_e (silu(gate_e x_t) * up_e x_t),  e = ids[t, k]
 *
 * x [T, H], gate and up [E, I, H], down [E, H, I], outputs [T, K, H].  x and outputs are
 * both float32 or both bfloat16 (the queue's compute); the three matrices are of one type,
 * float32 or bfloat16.  ids [T, K] int32; -1: the slot runs no expert.  All arrays lie in
 * the backend's memory.  The E of a call are numbers first .. first + E - 1; outputs of
 * slots with another id >= 0 are left as they are.  With limit > 0 as in swiglu.h.
 *
 * Products accumulate in float32.  A token's outputs depend on its own row and its
 * experts alone, bit for bit: not on the other tokens, their number or their order. */
#ifndef EXF_KERNELS_EXPERT_PRODUCTS_H
#define EXF_KERNELS_EXPERT_PRODUCTS_H
#include "kernels/linear/matrix.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int n_tokens, n_experts, top_k;
    int d_model, d_expert; /* H, I */
    float limit;
    int first; /* number of the first expert */
    int keep;  /* outputs of slots with id -1: 0: become 0, 1: are left as they are */
} exf_expert_shape;

typedef struct {
    exf_matrix gate, up, down;
} exf_expert_matrices;
#endif
