/* family_qwen3_next.c - Qwen3-Next: Qwen3-Next-80B-A3B, Qwen3-Coder-Next.
 *
 * The parts of Qwen3.5 MoE (family_qwen3_5_moe.c) in one text model: three layers of the gated delta rule to each of gated
 * attention, experts beside one gated shared expert, norm weights stored as w - 1 but for the delta rule's own.  The
 * projections of the delta rule lie in two tensors, group by group: a key head's q, k, v and z, and its b and a.
 * Multi-token-prediction layers are ignored. */
#include "model/rules.h"

#define DELTA "{P}layers.{L}.linear_attn."

/* Parts of EXF_ROWS_QKVZ and of EXF_ROWS_BA. */
enum { Q = 1, K = 2, V = 4, Z = 8, B = 1, A = 2 };

static const exf_tensor_rule rules[] = {
    EXF_RULES_MODEL(EXF_PLUS_ONE),
    EXF_RULES_ATTENTION(EXF_PLUS_ONE),
    EXF_RULES_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    EXF_RULES_FUSED_EXPERTS,
    EXF_RULES_SHARED("shared_expert"),
    EXF_RULES_SHARED_SWITCH,
    {EXF_W_DELTA_QKV, DELTA "in_proj_qkvz.weight", EXF_IN_LAYER, EXF_T_DELTANET,
     {EXF_DIM_DELTA_QKV, EXF_DIM_H}, EXF_LINEAR | EXF_ROWS(EXF_ROWS_QKVZ, Q | K | V)},
    {EXF_W_DELTA_Z, DELTA "in_proj_qkvz.weight", EXF_IN_LAYER, EXF_T_DELTANET,
     {EXF_DIM_DELTA_Z, EXF_DIM_H}, EXF_LINEAR | EXF_ROWS(EXF_ROWS_QKVZ, Z)},
    {EXF_W_DELTA_B, DELTA "in_proj_ba.weight", EXF_IN_LAYER, EXF_T_DELTANET,
     {EXF_DIM_DELTA_HEADS, EXF_DIM_H}, EXF_LINEAR | EXF_ROWS(EXF_ROWS_BA, B)},
    {EXF_W_DELTA_A, DELTA "in_proj_ba.weight", EXF_IN_LAYER, EXF_T_DELTANET,
     {EXF_DIM_DELTA_HEADS, EXF_DIM_H}, EXF_LINEAR | EXF_ROWS(EXF_ROWS_BA, A)},
    EXF_RULES_DELTANET,
};

const exf_family exf_family_qwen3_next = {
    .name = "qwen3_next",
    .architecture = "Qwen3NextForCausalLM",
    .configure = exf_configure_gated_hybrid,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"mtp."},
};
