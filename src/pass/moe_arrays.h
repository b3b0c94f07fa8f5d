/* moe_arrays.h - the arrays of one call of the MoE block, T tokens, carved from a
 * worker's arena in the backend's memory. */
#ifndef EXF_PASS_MOE_ARRAYS_H
#define EXF_PASS_MOE_ARRAYS_H
#include "base/arena.h"
#include "pass/observer.h"
#include "kernels/backend.h"
#include "model/architecture.h"

/* Arrays that a pass needs from a block besides the updated hidden states. */
typedef struct {
    int routed; /* 1: the routed output alone (corrections, probes, blocks shown in host memory) */
    int block;  /* 1: the block output alone */
    int input;  /* 1: the normed hidden states in float32, even if experts read bfloat16 */
    int probes; /* 1: outputs of other lanes' routes */
    int logits; /* 1: router logits, because the block routes its tokens itself (recorded hidden states) */
    int shown;  /* 1: expert outputs in float32 for observers in host memory, where experts give bfloat16 */
    int sent;   /* 1: the normed hidden states lie in the buffers of recorded.h, not in the arena */
} exf_moe_needs;

/* Arrays of a block.  Number type N is the queue's: float32 or bfloat16. */
typedef struct {
    float *u, *mixing;     /* [T, H], [T, exf_residual_mixing()]; used with several residual streams */
    float *input;          /* [T, H] normed hidden states; see exf_moe_needs */
    exf_matrix x;          /* [T, H] of N: operand of the products; equals input in float32 */
    exf_matrix outputs;    /* [T, K, H] of N */
    exf_matrix shared;     /* [T, H] of N: the shared experts' output, or the dense network's */
    float *shared_weights; /* [T] used if a layer switches its shared expert by token */
    float *routed, *block; /* [T, H] */
    exf_matrix probe_outputs; /* [T, K, H] of N */
    float *probe_routed;   /* [T, H] */
    int32_t *probe_ids;    /* [T, K] experts that a probe has to compute */
    int32_t *probe_source; /* [T, K] where the outputs of a probe's slots are (moe.h) */
    int32_t *only;         /* [T] zeros: the ids of an only expert */
    float *logits;          /* [T, E] */
    float *shown_outputs;  /* [min(T, EXF_MOE_BLOCK), K, H] */
    void *experts;         /* workspace of the experts operation */
} exf_moe_arrays;

/* Returns the number type that products of this compute mode read. */
exf_number exf_moe_number(exf_compute compute);
/* Returns the writable start of a carved matrix. */
static inline void *exf_moe_data(exf_matrix m)
{
    return (void *)(uintptr_t)m.p;
}

/* Returns the shape of n tokens on E experts of which each token runs K. */
exf_expert_shape exf_expert_shape_of(const exf_architecture *a, int n_tokens, int n_experts, int top_k, int width);

/* Takes the arrays of n_tokens from the arena (counts with arena->base NULL). */
void exf_moe_carve(exf_moe_arrays *m, exf_arena *arena, const exf_backend *b, exf_compute compute, const exf_architecture *a,
                   int n_tokens, const exf_moe_needs *needs);
/* Returns the floats that exf_moe_carve() takes. */
size_t exf_moe_arrays_floats(const exf_backend *b, exf_compute compute, const exf_architecture *a, int n_tokens,
                             const exf_moe_needs *needs);
#endif
