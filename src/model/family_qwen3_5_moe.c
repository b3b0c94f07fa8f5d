/* family_qwen3_5_moe.c - Qwen3.5 MoE: Qwen3.5-35B-A3B and kin, the text part.
 *
 * Most layers mix tokens with the gated delta rule after a short causal
 * convolution, every fourth with grouped-query attention whose heads are gated.
 * Every layer is MoE: softmax router, top-k, always renormalised, beside one
 * shared expert gated by a sigmoid.  Norm weights are stored as w - 1, but
 * for the delta rule's own.  Experts are stacked in the released checkpoints and
 * separate in others.  The vision tower and the multi-token-prediction layers are
 * ignored; for text the three rows of M-RoPE positions are equal, which is RoPE. */
#include "model/rules.h"

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    exf_config text;
    EXF_TRY(exf_config_part(c, "text_config", "qwen3_5_moe_text", &text, err));
    EXF_TRY(exf_configure_gated_hybrid(&text, a, err));
    EXF_TRY(exf_config_bool_or(c, "tie_word_embeddings|text_config.tie_word_embeddings", 0, &a->tied_embeddings, err));
out:
    return rc;
}

#define DELTA "{P}layers.{L}.linear_attn."

static const exf_tensor_rule rules[] = {
    EXF_RULES_MODEL(EXF_PLUS_ONE),
    EXF_RULES_ATTENTION(EXF_PLUS_ONE),
    EXF_RULES_FUSED_EXPERTS, /* as released */
    EXF_RULES_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    EXF_RULES_SHARED("shared_expert"),
    EXF_RULES_SHARED_SWITCH,
    {EXF_W_DELTA_QKV, DELTA "in_proj_qkv.weight", EXF_IN_LAYER, EXF_T_DELTANET, {EXF_DIM_DELTA_QKV, EXF_DIM_H}, EXF_LINEAR},
    {EXF_W_DELTA_Z, DELTA "in_proj_z.weight", EXF_IN_LAYER, EXF_T_DELTANET, {EXF_DIM_DELTA_Z, EXF_DIM_H}, EXF_LINEAR},
    {EXF_W_DELTA_B, DELTA "in_proj_b.weight", EXF_IN_LAYER, EXF_T_DELTANET, {EXF_DIM_DELTA_HEADS, EXF_DIM_H}, EXF_LINEAR},
    {EXF_W_DELTA_A, DELTA "in_proj_a.weight", EXF_IN_LAYER, EXF_T_DELTANET, {EXF_DIM_DELTA_HEADS, EXF_DIM_H}, EXF_LINEAR},
    EXF_RULES_DELTANET,
};

const exf_family exf_family_qwen3_5_moe = {
    .name = "qwen3_5_moe",
    .also = "qwen3_5_moe_text",
    .architecture = "Qwen3_5MoeForConditionalGeneration",
    .configure = configure,
    .prefixes = {"model.language_model.", "model."},
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"model.visual.", "visual.", "mtp.", "model.mtp.", "{P}mtp."},
};
