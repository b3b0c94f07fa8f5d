/* expert_products.h - the routed experts of a run of tokens at once: tokens are bucketed
 * by expert, then each expert's three products run on its tokens.
 *
 *   outputs[t, k] = down_e (silu(gate_e x_t) * up_e x_t),  e = ids[t, k]
 *
 * x [T, H] and outputs [T, K, H], both float32 or both bfloat16; gate and up [E, I, H],
 * down [E, H, I], all three float32 or all three bfloat16; ids [T, K] int32.  All arrays
 * lie in the backend's memory; on the CPU they are float32.  Outputs of slots with id -1
 * become 0, or stay as they are where `keep` is set.  Experts may come in parts: the E of
 * a call are numbers first .. first + E - 1, and outputs of slots with another are left as
 * they are.
 *
 * With limit > 0 the SwiGLU is that of swiglu.h.  Products accumulate in float32, on a
 * device over the inner axis in order.  Where x is bfloat16 the SwiGLU's result is rounded to bfloat16.
 * Where x is float32 and the matrices are bfloat16, x and the SwiGLU's result enter a
 * Hopper GPU's products as sums of three bfloat16 terms (split.cuh), which lose nothing of them;
 * the error of an element is that of the float32 accumulation.
 *
 * On a GPU a token's outputs depend on its own row and its experts alone, bit for bit: not on
 * the other tokens, their number or their order.  On the CPU the last bits also depend on how
 * many tokens of the call an expert has, as OpenBLAS chooses its kernel by that number. */
#ifndef EXF_KERNELS_EXPERT_PRODUCTS_H
#define EXF_KERNELS_EXPERT_PRODUCTS_H
#include "kernels/linear/matrix.h"

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int n_tokens, n_experts, top_k;
    int d_model, d_expert; /* H, I */
    float limit;
    int first; /* number of the first expert */
    int keep;  /* 1: outputs of slots with id -1 stay as they are */
} exf_expert_shape;

typedef struct {
    exf_matrix gate, up, down;
} exf_expert_matrices;

/* The GPU's; the CPU's are in experts_cpu.h. */
size_t exf_experts_workspace_cuda(const exf_expert_shape *s, exf_number x); /* bytes; x: the number type of x and outputs */
void exf_experts_cuda(struct exf_queue *q, exf_matrix outputs, exf_matrix x, const int32_t *ids, const exf_expert_matrices *m,
                      const exf_expert_shape *s, void *workspace);
#ifdef __cplusplus
}
#endif
#endif
