/* moe.h - the parts of a MoE block: the router, the routed experts, and the sum of their outputs. */
#ifndef EXF_KERNELS_MOE_H
#define EXF_KERNELS_MOE_H
#include "base/names.h"
#include "kernels/operation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the router chooses each token's K experts and their weights from logits -----------------
 *
 *   score   = softmax(z) over all E, sigmoid(z), or sqrt(softplus(z)); in double
 *   choice  = score + bias; with groups, the choices outside the best top_groups of n_groups groups become the lowest
 *             number, a group being as good as its largest choice (max) or the sum of its two largest (top2_sum): a choice
 *             below 0, which a negative bias makes, still comes before them.  A bias of -infinity: the expert does not
 *             exist and is never chosen while K others are
 *   ids     = the K largest choices, ties to the lower expert number; or, where there is a table, table[token]
 *   weights = score[ids], divided by (their sum + epsilon) when renormalise, times scaling, times expert_scale[ids]
 *
 * An expert that a table names n times for a token is one route: its score counts n times in the sum, its weight is n times
 * that of one (in double, then rounded), and the n - 1 slots that are left are empty: id -1, weight 0.
 * logits [T, E]; ids [T, K] and weights [T, K] sorted by falling weight, empty slots last. */

typedef struct {
    exf_router_score score;
    int n_experts, top_k;
    int n_groups, top_groups, group_top2; /* n_groups 1: no groups */
    int renormalise;
    double epsilon, scaling;
    const float *bias;     /* [E], or NULL */
    const float *table;    /* [vocab, K] expert numbers, or NULL */
    const float *expert_scale; /* [E], or NULL: all are 1 */
} exf_router_rules;

/* Fills score [E] of a token from its logits [E]. */
void exf_router_scores_cpu(double *score, const float *logits, exf_router_score kind, int n_experts);
/* Fills choice [n, E], what experts are chosen by, and gate [n, E], the scores themselves, of tokens row[i]; gate NULL: not
 * wanted.  row NULL: of tokens 0 .. n - 1.  logits [T, E]; bias [E], which choices have beside the score, or NULL.  Computed in
 * double as the router has it, then rounded. */
void exf_router_scores_cuda(exf_queue *q, float *choice, float *gate, const float *logits, const size_t *row, size_t n,
                            exf_router_score kind, const float *bias, int n_experts);
/* Doubles of scratch. */
int exf_router_scratch(int n_experts);
/* tokens [T]: ids of the tokens, needed with a table. */
typedef void exf_router_op(exf_queue *q, int32_t *ids, float *weights, const float *logits, const int32_t *tokens, int n_tokens,
                           const exf_router_rules *r, double *scratch);
exf_router_op exf_router_cpu, exf_router_cuda;

/* ---- the routed experts of a run of tokens ------------------------------------------------
 * Tokens are bucketed by expert, then each expert's three products run on its tokens:
 *
 *   outputs[t, k] = down_e (silu(gate_e x_t) * up_e x_t),  e = ids[t, k]
 *
 * x [T, H] and outputs [T, K, H], both float32 or both bfloat16; gate and up [E, I, H], down [E, H, I], all three float32 or
 * all three bfloat16; ids [T, K] int32.  All arrays lie in the backend's memory; on the CPU they are float32.  Outputs of
 * slots with id -1 become 0, or stay as they are where `keep` is set.  Experts may come in parts: the E of a call are
 * numbers first .. first + E - 1, and outputs of slots with another are left as they are.
 *
 * Matrices may have biases, which are added to their products: to gate's and up's before the SwiGLU, to down's last; and slope
 * other than 0 asks for the scaled form of the SwiGLU (exf_swiglu_form).  On a GPU these and gelu run without tensor cores.
 * With limit > 0 the SwiGLU is that of rows.h.  Products accumulate in float32, on a device over the inner axis in order.
 * Where x is bfloat16 the SwiGLU's result is rounded to bfloat16.  Where x is float32 and the matrices are bfloat16, x and
 * the SwiGLU's result enter the products of tensor cores as sums of three bfloat16 terms (rows.h), which lose nothing of them;
 * the error of an element is that of the float32 accumulation.
 *
 * On a GPU a token's outputs depend on its own row and its experts alone, bit for bit: not on the other tokens, their
 * number or their order.  On the CPU the last bits also depend on how many tokens of the call an expert has, as OpenBLAS
 * chooses its kernel by that number. */

typedef struct {
    int n_tokens, n_experts, top_k;
    int d_model, d_expert; /* H, I */
    float limit;
    int first; /* number of the first expert */
    int keep;  /* 1: outputs of slots with id -1 stay as they are */
    float slope, shift; /* of the scaled SwiGLU; slope 0: it is the plain one */
    int gelu;  /* 1: gelu in place of silu (rows.h), with no limit and no slope */
} exf_expert_shape;

typedef struct {
    exf_matrix gate, up, down;
    const float *gate_bias, *up_bias, *down_bias; /* [E, I], [E, I], [E, H]; each NULL: none */
} exf_expert_matrices;

/* Bytes of workspace for a call of this shape; x: the number type of x and outputs. */
typedef size_t exf_experts_workspace_op(const exf_expert_shape *s, exf_number x);
exf_experts_workspace_op exf_experts_workspace_cpu, exf_experts_workspace_cuda;
typedef void exf_experts_op(exf_queue *q, exf_matrix outputs, exf_matrix x, const int32_t *ids, const exf_expert_matrices *m,
                            const exf_expert_shape *s, void *workspace);
exf_experts_op exf_experts_cpu, exf_experts_cuda;

/* ---- the sum of a block's outputs ---------------------------------------------------------
 *
 *   routed[t] = start[t] + sum over k in order of weights[t, k] * outputs[t, k]
 *   block[t]  = routed[t] + shared_weights[t] * shared[t]
 *   hidden[t] = hidden[t] + block[t]
 *
 * Every product and sum is one float32 rounding, so CPU and GPU give equal bits for equal inputs. */

enum { EXF_SOURCE_OTHER = -1, EXF_SOURCE_NONE = -2 };

/* Arrays lie in the backend's memory; start, hidden, routed and block are float32 [T, H]. */
typedef struct {
    int n_tokens, top_k, d_model;
    const float *start;          /* NULL: 0.  May be routed itself. */
    exf_matrix outputs;          /* [T, K, H]; p NULL: no term */
    const int32_t *source;       /* [T, K] the slot of outputs that a slot's term is read from, EXF_SOURCE_OTHER: the
                                  * same slot of `other`, EXF_SOURCE_NONE: no term; NULL: its own slot of outputs */
    exf_matrix other;            /* [T, K, H] of the number type of outputs */
    const int32_t *ids;          /* [T, K] a slot with -1 has no term, and its outputs are not read; NULL: all slots have one */
    const float *weights;        /* [T, K]; NULL: all are 1 */
    exf_matrix shared;           /* [T, H]; p NULL: no term */
    const float *shared_weights; /* [T]; NULL: all are 1 */
    float *routed, *block;       /* NULL: not wanted */
    float *hidden;               /* NULL: not wanted */
    uint64_t *least;             /* becomes the smallest index of an element of hidden that is not finite, if that is smaller than
                                  * it was; base: the index of hidden's first element.  NULL: not wanted; a device's alone */
    uint64_t base;
} exf_moe_sum_call;

typedef void exf_moe_sum_op(exf_queue *q, const exf_moe_sum_call *c);
exf_moe_sum_op exf_moe_sum_cpu, exf_moe_sum_cuda; /* on the CPU matrices are float32 */

/* ---- the outputs of new routes that the same token has already run under its old ones --------
 * For every slot of `wanted` [T, K]:
 *   source   the token's slot of `ran` [T, K] that holds the same id, the first one; EXF_SOURCE_OTHER where none does,
 *            EXF_SOURCE_NONE where the id is -1
 *   missing  the id where source is EXF_SOURCE_OTHER, else -1: `experts` with shape.keep = 1 and these ids computes the rest
 *   to       optional: the row [H] of the source copied from `from`; zero where the id is -1; left as it is where the id is
 *            missing */

/* Arrays lie in the backend's memory; to and from are of one number type. */
typedef struct {
    int n_tokens, top_k, d_model;
    exf_matrix to;   /* [T, K, H]; p NULL: nothing is copied */
    exf_matrix from; /* [T, K, H] */
    const int32_t *wanted, *ran;
    int32_t *source, *missing;
} exf_reuse_call;

typedef void exf_reuse_outputs_op(exf_queue *q, const exf_reuse_call *c);
exf_reuse_outputs_op exf_reuse_outputs_cpu, exf_reuse_outputs_cuda;
#ifdef __cplusplus
}
#endif
#endif
